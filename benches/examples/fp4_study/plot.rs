//! Lines over two logarithmic axes, as a drawing that stands alone.

use std::fmt::Write;

/// A named line.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

const COLORS: [&str; 9] = [
    "#30638e", "#7fa6c9", "#d1495b", "#e8919b", "#b04a7a", "#66a182", "#2e7d4f", "#a5c9b4",
    "#c9a227",
];
const LEFT: f64 = 60.0;
const WIDTH: f64 = 480.0;
const TOP: f64 = 40.0;
const HEIGHT: f64 = 280.0;

/// Where a value lies between the ends of an axis, from 0 to 1.
fn share(x: f64, (low, high): (f64, f64)) -> f64 {
    (x.log2() - low.log2()) / (high.log2() - low.log2())
}

fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::MAX, 0.0f64), |(low, high), x| {
        (low.min(x), high.max(x))
    });
    (low.log2().floor().exp2(), high.log2().ceil().exp2())
}

/// An SVG document of lines through positive points.
pub(crate) fn lines(title: &str, axis: &str, all: &[Line]) -> String {
    let points = || all.iter().flat_map(|line| &line.points);
    let (xs, ys) = (ends(points().map(|p| p.0)), ends(points().map(|p| p.1)));
    let x = |value| LEFT + share(value, xs) * WIDTH;
    let y = |value| TOP + (1.0 - share(value, ys)) * HEIGHT;
    let (width, height) = (LEFT + WIDTH + 190.0, TOP + HEIGHT + 46.0);
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" font-size="11"><rect width="{width}" height="{height}" fill="#ffffff"/><text x="12" y="20" font-size="13">{title}</text>"##
    );
    let mut tick = ys.0;
    while tick <= ys.1 {
        let (at, right) = (y(tick), LEFT + WIDTH);
        let _ = write!(
            svg,
            r##"<line x1="{LEFT}" y1="{at:.1}" x2="{right}" y2="{at:.1}" stroke="#dddddd"/><text x="{}" y="{:.1}" text-anchor="end">{tick:.2e}</text>"##,
            LEFT - 6.0,
            at + 4.0
        );
        tick *= 4.0;
    }
    let mut tick = xs.0;
    while tick <= xs.1 {
        let (at, bottom) = (x(tick), TOP + HEIGHT);
        let _ = write!(
            svg,
            r##"<line x1="{at:.1}" y1="{TOP}" x2="{at:.1}" y2="{bottom}" stroke="#eeeeee"/><text x="{at:.1}" y="{}" text-anchor="middle">{tick}</text>"##,
            bottom + 16.0
        );
        tick *= 2.0;
    }
    let _ = write!(
        svg,
        r#"<text x="{}" y="{}" text-anchor="middle">{axis}</text>"#,
        LEFT + WIDTH / 2.0,
        TOP + HEIGHT + 36.0
    );
    for (i, line) in all.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        let path: Vec<String> = line
            .points
            .iter()
            .map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1)))
            .collect();
        let at = TOP + 14.0 * i as f64;
        let _ = write!(
            svg,
            r#"<polyline points="{}" fill="none" stroke="{color}" stroke-width="1.6"/><text x="{}" y="{at:.1}" fill="{color}">{}</text>"#,
            path.join(" "),
            LEFT + WIDTH + 10.0,
            line.name
        );
    }
    svg + "</svg>\n"
}
