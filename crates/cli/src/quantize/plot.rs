//! The errors of all layers as a drawing that stands alone: a line for each kind of linear over the
//! blocks, dashed for rounding to nearest.

use std::collections::BTreeMap;
use std::fmt::Write;

use flashcube_quantize::model::{LinearReport, ModelReport};

const LEFT: f64 = 64.0;
const TOP: f64 = 40.0;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const COLORS: [&str; 7] = [
    "#d1495b", "#30638e", "#66a182", "#c9a227", "#7d5ba6", "#2e2e3a", "#e07a2f",
];

/// An SVG document.
pub(super) fn errors(report: &ModelReport) -> String {
    let mut kinds: BTreeMap<&str, Vec<&LinearReport>> = BTreeMap::new();
    for linear in &report.linears {
        kinds.entry(kind(&linear.name)).or_default().push(linear);
    }
    let positive = report
        .linears
        .iter()
        .flat_map(|linear| [linear.relative(), linear.rtn_relative()])
        .filter(|error| *error > 0.0);
    let (low, high) = positive.fold((f64::INFINITY, 0.0f64), |(l, h), e| (l.min(e), h.max(e)));
    let (low, high) = match low < high {
        true => (low.log10().floor(), high.log10().ceil()),
        false => (-3.0, 0.0),
    };
    let blocks = report
        .linears
        .iter()
        .map(|linear| linear.block)
        .max()
        .unwrap_or(0);
    let scale = Scale { low, high, blocks };
    let bottom = TOP + HEIGHT;
    let (width, height) = (LEFT + WIDTH + 170.0, bottom + 44.0);
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" font-size="11"><rect width="{width}" height="{height}" fill="#ffffff"/><text x="12" y="20" font-size="14">{} to {}: error of each layer's output, dashed: rounding to nearest</text>"##,
        report.method, report.format,
    );
    for power in low as i32..=high as i32 {
        let y = scale.y(10f64.powi(power));
        let label = 10f64.powi(power + 2);
        let _ = write!(
            svg,
            r##"<line x1="{LEFT}" x2="{}" y1="{y:.1}" y2="{y:.1}" stroke="#dddddd"/><text x="{}" y="{:.1}" text-anchor="end">{label} %</text>"##,
            LEFT + WIDTH,
            LEFT - 6.0,
            y + 4.0,
        );
    }
    for block in (0..=blocks).step_by((blocks / 10).max(1)) {
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="middle">{block}</text>"#,
            scale.x(block),
            bottom + 16.0,
        );
    }
    let _ = write!(
        svg,
        r#"<text x="{:.1}" y="{:.1}" text-anchor="middle">block</text>"#,
        LEFT + WIDTH / 2.0,
        bottom + 34.0,
    );
    for (i, (kind, linears)) in kinds.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        scale.line(&mut svg, linears, LinearReport::relative, color, "");
        let dashes = r#" stroke-dasharray="4 3" opacity="0.6""#;
        scale.line(&mut svg, linears, LinearReport::rtn_relative, color, dashes);
        let (x, y) = (LEFT + WIDTH + 12.0, TOP + 18.0 * i as f64);
        let _ = write!(
            svg,
            r#"<rect x="{x}" y="{y}" width="10" height="10" fill="{color}"/><text x="{}" y="{}">{kind}</text>"#,
            x + 15.0,
            y + 9.0,
        );
    }
    svg + "</svg>\n"
}

/// The part of a linear's name that its block does not say.
fn kind(name: &str) -> &str {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut rest = name;
    while let Some((part, after)) = rest.split_once('.') {
        rest = after;
        if digits(part) {
            break;
        }
    }
    rest
}

struct Scale {
    /// Powers of ten.
    low: f64,
    high: f64,
    /// The last block.
    blocks: usize,
}

impl Scale {
    fn x(&self, block: usize) -> f64 {
        LEFT + WIDTH * (block as f64 + 0.5) / (self.blocks as f64 + 1.0)
    }

    fn y(&self, error: f64) -> f64 {
        let part = (error.log10() - self.low) / (self.high - self.low);
        TOP + HEIGHT * (1.0 - part.clamp(0.0, 1.0))
    }

    fn line(
        &self,
        svg: &mut String,
        linears: &[&LinearReport],
        error: fn(&LinearReport) -> f64,
        color: &str,
        style: &str,
    ) {
        let points: String = linears
            .iter()
            .map(|linear| format!("{:.1},{:.1} ", self.x(linear.block), self.y(error(linear))))
            .collect();
        let _ = write!(
            svg,
            r#"<polyline points="{}" fill="none" stroke="{color}" stroke-width="1.5"{style}/>"#,
            points.trim_end()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_leave_out_the_block() {
        assert_eq!(kind("model.layers.12.self_attn.q_proj"), "self_attn.q_proj");
        assert_eq!(kind("encoder.layer.0.output.dense"), "output.dense");
        assert_eq!(kind("lm_head"), "lm_head");
    }
}
