//! The drawings of the page. Colours come from the page's style sheet, so that they follow its
//! light and dark themes.

use super::page::escape;
use super::{BackendReport, ErrorStats, HeadMap, LayerCheck, SentenceMaps};

/// Shades of a heat map: classes h1 .. h8 of the style sheet.
const SHADES: f32 = 8.0;
/// Side of a cell of a labelled map.
const CELL: usize = 17;

/// The shade grows with the square root of the weight, so that faint attention can be seen.
fn shade(weight: f32) -> u8 {
    // A NaN weight becomes shade 0.
    (weight.clamp(0.0, 1.0).sqrt() * SHADES).round() as u8
}

/// The legend's swatches: (shade, weight in its middle).
pub(super) fn legend() -> impl Iterator<Item = (u8, f32)> {
    [1u8, 2, 4, 6, 8]
        .into_iter()
        .map(|shade| (shade, (f32::from(shade) / SHADES).powi(2)))
}

/// A labelled map with one query for each row and one key for each column; every visible cell
/// names its weight.
pub(super) fn head_map(map: &HeadMap, tokens: &[String]) -> String {
    let n = tokens.len();
    let longest = tokens
        .iter()
        .map(|token| token.chars().count())
        .max()
        .unwrap_or(0);
    let margin = (longest * 7 + 10).min(110);
    let size = margin + n * CELL + 2;
    let (layer, head) = (map.layer, map.head);
    let mut svg = format!(
        r#"<svg viewBox="0 0 {size} {size}" width="{size}" height="{size}" role="img" aria-label="Attention map of layer {layer}, head {head}: {n} queries by {n} keys">"#
    );
    let edge = n * CELL;
    svg += &format!(
        r#"<rect class="ground" x="{margin}" y="{margin}" width="{edge}" height="{edge}"/>"#
    );
    for (i, token) in tokens.iter().enumerate() {
        let token = escape(token);
        let (at, middle) = (margin - 5, margin + i * CELL + CELL / 2);
        svg += &format!(
            r#"<text class="end" x="{at}" y="{}">{token}</text>"#,
            middle + 4
        );
        svg += &format!(
            r#"<text transform="translate({} {at}) rotate(-90)">{token}</text>"#,
            middle + 4
        );
    }
    for (cell, &weight) in map.weights.iter().enumerate() {
        let (i, j) = (cell / n, cell % n);
        let (x, y, shade) = (margin + j * CELL, margin + i * CELL, shade(weight));
        if shade > 0 {
            svg += &format!(
                r#"<rect class="h{shade}" x="{x}" y="{y}" width="{CELL}" height="{CELL}"><title>{} → {}: {weight:.3}</title></rect>"#,
                escape(&tokens[i]),
                escape(&tokens[j]),
            );
        }
    }
    svg + "</svg>"
}

/// Every head of every layer as a small map: layers down, heads across.
pub(super) fn overview(maps: &SentenceMaps, heads: usize) -> String {
    const SIDE: usize = 56;
    const STEP: usize = 62;
    const LEFT: usize = 26;
    const TOP: usize = 20;
    let layers = maps.heads.len().checked_div(heads).unwrap_or(0);
    let (width, height) = (LEFT + heads * STEP, TOP + layers * STEP);
    let mut svg = format!(
        r#"<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="Attention maps of all {layers} layers (rows) and {heads} heads (columns)">"#
    );
    for head in 0..heads {
        let x = LEFT + head * STEP + SIDE / 2;
        svg += &format!(r#"<text class="mid" x="{x}" y="12">{head}</text>"#);
    }
    for layer in 0..layers {
        let y = TOP + layer * STEP + SIDE / 2 + 4;
        svg += &format!(
            r#"<text class="end" x="{}" y="{y}">{layer}</text>"#,
            LEFT - 8
        );
    }
    let scale = SIDE as f32 / maps.n.max(1) as f32;
    for map in &maps.heads {
        let (x, y) = (LEFT + map.head * STEP, TOP + map.layer * STEP);
        svg += &format!(
            r#"<g><title>layer {}, head {}</title><rect class="ground" x="{x}" y="{y}" width="{SIDE}" height="{SIDE}"/><g transform="translate({x} {y}) scale({scale:.4})">"#,
            map.layer, map.head
        );
        svg += &shaded_paths(map, maps.n);
        svg += "</g></g>";
    }
    svg + "</svg>"
}

/// One path for each shade, made of horizontal runs of unit cells.
fn shaded_paths(map: &HeadMap, n: usize) -> String {
    let mut paths = vec![String::new(); SHADES as usize + 1];
    for (i, row) in map.weights.chunks(n.max(1)).enumerate() {
        let mut j = 0;
        for run in row.chunk_by(|&a, &b| shade(a) == shade(b)) {
            let length = run.len();
            paths[usize::from(shade(run[0]))] += &format!("M{j} {i}h{length}v1h-{length}z");
            j += length;
        }
    }
    let drawn = paths
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(_, path)| !path.is_empty());
    drawn
        .map(|(shade, path)| format!(r#"<path class="h{shade}" d="{path}"/>"#))
        .collect()
}

/// Geometry of an error plot: a logarithmic axis over whole decades, one slot for each layer.
struct LogAxis {
    low: i32,
    high: i32,
    slots: usize,
}

impl LogAxis {
    const WIDTH: f64 = 380.0;
    const HEIGHT: f64 = 250.0;
    const LEFT: f64 = 50.0;
    const TOP: f64 = 12.0;
    const BOTTOM: f64 = 214.0;

    /// Covers every finite positive value; at least one decade.
    fn around(values: impl Iterator<Item = f64>, slots: usize) -> Self {
        let logs = values.filter(|v| v.is_finite() && *v > 0.0).map(f64::log10);
        let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
            (low.min(v), high.max(v))
        });
        if low > high {
            return Self {
                low: -8,
                high: -7,
                slots,
            };
        }
        let low = low.floor() as i32;
        Self {
            low,
            high: (high.ceil() as i32).max(low + 1),
            slots,
        }
    }

    /// Values off the axis (0, infinities) lie on its edge.
    fn y(&self, value: f64) -> f64 {
        let (low, high) = (f64::from(self.low), f64::from(self.high));
        let share = ((value.log10() - low) / (high - low)).clamp(0.0, 1.0);
        Self::BOTTOM - share * (Self::BOTTOM - Self::TOP)
    }

    fn x(&self, slot: usize, offset: f64) -> f64 {
        let width = (Self::WIDTH - Self::LEFT - 8.0) / self.slots.max(1) as f64;
        Self::LEFT + (slot as f64 + 0.5 + offset) * width
    }

    fn grid(&self) -> String {
        let mut svg = String::new();
        let (left, right) = (Self::LEFT, Self::WIDTH - 8.0);
        for decade in self.low..=self.high {
            let y = self.y(10f64.powi(decade));
            svg += &format!(
                r#"<line class="grid" x1="{left}" x2="{right}" y1="{y:.1}" y2="{y:.1}"/><text class="end" x="{}" y="{:.1}">1e{decade}</text>"#,
                left - 6.0,
                y + 4.0
            );
        }
        for slot in 0..self.slots {
            let (x, y) = (self.x(slot, 0.0), Self::BOTTOM + 16.0);
            svg += &format!(r#"<text class="mid" x="{x:.1}" y="{y}">{slot}</text>"#);
        }
        let x = (left + right) / 2.0;
        svg + &format!(
            r#"<text class="mid" x="{x}" y="{}">layer</text>"#,
            Self::HEIGHT - 4.0
        )
    }
}

/// The style sheet's colour class s0 .. s4 of a backend.
pub(super) fn series(backend: usize) -> usize {
    backend % 5
}

/// Largest error of each layer for each backend (filled mark), the RMS error (hollow mark) and the
/// bound (a line), on a logarithmic axis.
pub(super) fn error_plot(
    name: &str,
    backends: &[BackendReport],
    stats: fn(&LayerCheck) -> ErrorStats,
) -> String {
    let slots = backends
        .iter()
        .map(|backend| backend.layers.len())
        .max()
        .unwrap_or(0);
    let all = || {
        backends
            .iter()
            .flat_map(|backend| &backend.layers)
            .map(stats)
    };
    let axis = LogAxis::around(all().flat_map(|e| [e.max, e.rms, e.bound]), slots);
    let mut svg = format!(
        r#"<svg viewBox="0 0 {} {}" role="img" aria-label="Errors of {} by layer and backend, logarithmic; the numbers are in the tables below">"#,
        LogAxis::WIDTH,
        LogAxis::HEIGHT,
        escape(name)
    );
    svg += &axis.grid();
    for (i, backend) in backends.iter().enumerate() {
        let series = series(i);
        // Side by side within the slot: errors of several backends often coincide.
        let offset = (i as f64 + 0.5) / backends.len() as f64 - 0.5;
        for check in &backend.layers {
            let e = stats(check);
            let x = axis.x(check.layer, offset * 0.7);
            let half = 0.35 / backends.len() as f64;
            let bound = axis.y(e.bound);
            let [x1, x2] = [-half, half].map(|by| axis.x(check.layer, offset * 0.7 + by));
            svg += &format!(
                r#"<line class="bound" x1="{x1:.1}" x2="{x2:.1}" y1="{bound:.1}" y2="{bound:.1}"/><line class="stem s{series}" x1="{x:.1}" x2="{x:.1}" y1="{:.1}" y2="{:.1}"/>"#,
                axis.y(e.rms),
                axis.y(e.max)
            );
            let note = format!("{}, layer {}", escape(&backend.name), check.layer);
            for (value, kind, class) in [(e.rms, "RMS", "hollow"), (e.max, "max", "filled")] {
                svg += &format!(
                    r#"<circle class="{class} s{series}" cx="{x:.1}" cy="{:.1}" r="4"><title>{note}: {kind} {value:.2e}, bound {:.2e}</title></circle>"#,
                    axis.y(value),
                    e.bound
                );
            }
        }
    }
    svg + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shades_cover_the_weights_and_survive_nan() {
        assert_eq!(
            [0.0, 0.001, 0.0157, 0.25, 1.0, 7.0].map(shade),
            [0, 0, 1, 4, 8, 8]
        );
        assert_eq!(shade(f32::NAN), 0);
        assert!(legend().all(|(s, weight)| shade(weight) == s));
    }

    #[test]
    fn shaded_paths_merge_runs_and_skip_the_ground() {
        let map = HeadMap {
            layer: 0,
            head: 0,
            weights: vec![1.0, 1.0, 0.0, 0.25],
        };
        let expected = r#"<path class="h4" d="M1 1h1v1h-1z"/><path class="h8" d="M0 0h2v1h-2z"/>"#;
        assert_eq!(shaded_paths(&map, 2), expected);
    }

    #[test]
    fn log_axis_keeps_every_value_on_the_plot() {
        let axis = LogAxis::around([3e-8, 2e-6, 0.0, f64::INFINITY].into_iter(), 6);
        assert_eq!((axis.low, axis.high), (-8, -5));
        for value in [0.0, 1e-30, 1e-7, 1.0, f64::INFINITY] {
            assert!(
                (LogAxis::TOP..=LogAxis::BOTTOM).contains(&axis.y(value)),
                "{value}"
            );
        }
        assert!(axis.y(1e-6) < axis.y(1e-7));
        let empty = LogAxis::around(std::iter::empty(), 0);
        assert!(empty.grid().contains("1e-8"));
    }
}
