//! Ours and the peers as bars, one group for each problem: a drawing that stands alone.

use std::fmt::Write;

use super::cells::{ComparedCell, Comparison, short};

const BAR: usize = 9;
const GAP: usize = 8;
const LEFT: usize = 330;
const WIDTH: usize = 560;
const TOP: usize = 64;
const COLORS: [&str; 6] = [
    "#d1495b", "#e8919b", "#30638e", "#7fa6c9", "#66a182", "#c9a227",
];

/// An SVG document.
pub(super) fn bars(comparison: &Comparison) -> String {
    let series = series(comparison);
    let bars = |cell: &ComparedCell| {
        let present = series.iter().enumerate();
        let present = present.filter_map(|(i, name)| Some((i, value(cell, name)?)));
        present.collect::<Vec<_>>()
    };
    let groups: Vec<_> = comparison
        .cells
        .iter()
        .map(|cell| (cell, bars(cell)))
        .collect();
    let ceilings = comparison.matmul.iter().map(|(_, tflops)| *tflops);
    let values = groups
        .iter()
        .flat_map(|(_, bars)| bars.iter().map(|bar| bar.1));
    let largest = values.chain(ceilings).fold(1.0, f64::max);
    let x = |tflops: f64| LEFT as f64 + tflops / largest * WIDTH as f64;
    let height: usize = groups.iter().map(|(_, bars)| bars.len() * BAR + GAP).sum();
    let (width, bottom) = (LEFT + WIDTH + 70, TOP + height);
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {h}" width="{width}" height="{h}" font-family="sans-serif" font-size="11"><rect width="{width}" height="{h}" fill="#ffffff"/><text x="12" y="20" font-size="14">TFLOP/s on {}, causal counts half the work; dashed: cuBLAS 8192^3</text>"##,
        escape(&comparison.device),
        h = bottom + 12,
    );
    legend(&mut svg, &series);
    let mut y = TOP;
    for (cell, bars) in &groups {
        let middle = y + bars.len() * BAR / 2 + 4;
        push(
            &mut svg,
            format_args!(
                r#"<text x="{}" y="{middle}" text-anchor="end">{}</text>"#,
                LEFT - 8,
                escape(short(&cell.problem))
            ),
        );
        let top = y;
        for &(i, tflops) in bars {
            let end = x(tflops);
            push(
                &mut svg,
                format_args!(
                    r#"<rect x="{LEFT}" y="{y}" width="{:.1}" height="{}" fill="{}"/><text x="{:.1}" y="{}" font-size="8">{tflops:.0}</text>"#,
                    end - LEFT as f64,
                    BAR - 1,
                    COLORS[i % COLORS.len()],
                    end + 3.0,
                    y + BAR - 2,
                ),
            );
            y += BAR;
        }
        if let Some((_, tflops)) = comparison.matmul.iter().find(|(d, _)| *d == cell.dtype) {
            let at = x(*tflops);
            push(
                &mut svg,
                format_args!(
                    r##"<line x1="{at:.1}" x2="{at:.1}" y1="{top}" y2="{y}" stroke="#555555" stroke-dasharray="3 2"/>"##
                ),
            );
        }
        y += GAP;
    }
    svg + "</svg>\n"
}

/// Ours in both layouts, then the peers.
fn series(comparison: &Comparison) -> Vec<String> {
    let ours = ["bhsd", "bshd"].into_iter().filter(|&layout| {
        comparison
            .cells
            .iter()
            .any(|cell| cell.ours.contains_key(layout))
    });
    let ours = ours.map(|layout| format!("ours {layout}"));
    ours.chain(comparison.names().into_iter().map(str::to_owned))
        .collect()
}

fn value(cell: &ComparedCell, series: &str) -> Option<f64> {
    match series.strip_prefix("ours ") {
        Some(layout) => cell.ours.get(layout).copied(),
        None => {
            let peer = cell
                .peers
                .iter()
                .find(|peer| peer.implementation == series)?;
            Some(peer.tflop_per_s)
        }
    }
}

fn legend(svg: &mut String, series: &[String]) {
    for (i, name) in series.iter().enumerate() {
        let x = 12 + 110 * i;
        push(
            svg,
            format_args!(
                r#"<rect x="{x}" y="34" width="10" height="10" fill="{}"/><text x="{}" y="43">{}</text>"#,
                COLORS[i % COLORS.len()],
                x + 15,
                escape(name)
            ),
        );
    }
}

/// Writing to a string cannot fail.
fn push(svg: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = svg.write_fmt(text);
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
