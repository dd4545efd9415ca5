//! The terminal tables of a demo run.

use std::fmt::{self, Display, Formatter};

use super::{BackendReport, COSINE_LIMIT, DemoReport, Shapes, similarity};

/// More sentences than this are listed with their nearest one instead of as a square table.
const MATRIX_LIMIT: usize = 16;

/// Prints a report as text: `println!("{}", Tables(&report))`.
pub struct Tables<'a>(pub &'a DemoReport);

impl Display for Tables<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let report = self.0;
        let Shapes {
            layers,
            b,
            h,
            s,
            d,
            tokens,
        } = report.shapes;
        writeln!(
            f,
            "{b} sentences, {tokens} tokens; {layers} attentions of [b {b}, h {h}, s {s}, d {d}]"
        )?;
        for cut in &report.truncations {
            let number = cut.sentence + 1;
            writeln!(
                f,
                "note: sentence {number} cut from {} to {} tokens",
                cut.tokens, cut.kept
            )?;
        }
        for backend in &report.backends {
            write_layers(f, backend)?;
        }
        write_similarity(f, report)?;
        write_times(f, report)?;
        writeln!(f)?;
        for failure in &report.failures {
            writeln!(f, "FAIL  {failure}")?;
        }
        if report.passed() {
            writeln!(
                f,
                "pass  every layer within its bound, ranking and cosines as the f64 run"
            )?;
        }
        Ok(())
    }
}

fn write_layers(f: &mut Formatter<'_>, backend: &BackendReport) -> fmt::Result {
    writeln!(
        f,
        "\n{}: error of each layer against the f64 reference on the same q, k, v",
        backend.name
    )?;
    writeln!(
        f,
        "  layer   out max    out rms      bound    lse max    lse rms      bound  result"
    )?;
    for check in &backend.layers {
        let (out, lse) = (check.out, check.lse);
        let result = if check.passed() { "pass" } else { "FAIL" };
        writeln!(
            f,
            "  {:>5}  {:>8.2e}   {:>8.2e}   {:>8.2e}   {:>8.2e}   {:>8.2e}   {:>8.2e}  {result}",
            check.layer, out.max, out.rms, out.bound, lse.max, lse.rms, lse.bound
        )?;
    }
    let mut blueprints: Vec<_> = backend
        .layers
        .iter()
        .map(|check| &check.blueprint)
        .collect();
    blueprints.dedup();
    for blueprint in blueprints {
        writeln!(f, "  ran {blueprint}")?;
    }
    match &backend.error {
        Some(error) => writeln!(f, "  FAIL {error}"),
        None => Ok(()),
    }
}

fn write_similarity(f: &mut Formatter<'_>, report: &DemoReport) -> fmt::Result {
    let Some(shown) = report.shown() else {
        return Ok(());
    };
    writeln!(f, "\nsimilarity: cosines by {}, * = nearest", shown.name)?;
    if report.sentences.len() <= MATRIX_LIMIT {
        write_matrix(f, report, shown)?;
    } else {
        write_nearest(f, report, shown)?;
    }
    for backend in report.finished() {
        let ranking = match backend.misranking {
            None => "ranks as the f64 run",
            Some(_) => "RANKS OTHERWISE than the f64 run",
        };
        let (name, off) = (&backend.name, backend.max_cosine_difference);
        writeln!(
            f,
            "  {name}: {ranking}, cosines within {off:.1e} (limit {COSINE_LIMIT:e})"
        )?;
    }
    Ok(())
}

fn write_matrix(f: &mut Formatter<'_>, report: &DemoReport, shown: &BackendReport) -> fmt::Result {
    write!(f, "     ")?;
    for j in 1..=report.sentences.len() {
        write!(f, "{j:>6} ")?;
    }
    writeln!(f)?;
    for (i, sentence) in report.sentences.iter().enumerate() {
        write!(f, "  {:>3}", i + 1)?;
        let nearest = similarity::nearest(&shown.similarity[i], i);
        for (j, cosine) in shown.similarity[i].iter().enumerate() {
            let mark = if nearest == Some(j) { '*' } else { ' ' };
            write!(f, "{cosine:>6.2}{mark}")?;
        }
        writeln!(f, "  {}", shorten(&sentence.text, 40))?;
    }
    Ok(())
}

fn write_nearest(f: &mut Formatter<'_>, report: &DemoReport, shown: &BackendReport) -> fmt::Result {
    for (i, sentence) in report.sentences.iter().enumerate() {
        let text = shorten(&sentence.text, 40);
        write!(f, "  {:>3}  {text:<40}", i + 1)?;
        if let Some(j) = similarity::nearest(&shown.similarity[i], i) {
            let other = shorten(&report.sentences[j].text, 40);
            write!(f, "  {:.3}  {:>3}  {other}", shown.similarity[i][j], j + 1)?;
        }
        writeln!(f)?;
    }
    Ok(())
}

fn write_times(f: &mut Formatter<'_>, report: &DemoReport) -> fmt::Result {
    let layers = report.shapes.layers;
    writeln!(
        f,
        "\ntime of {layers} attentions, transfers included   first (compiles)   second   same bits"
    )?;
    for backend in report.finished() {
        let [first, warm] = [backend.first_seconds, backend.warm_seconds].map(milliseconds);
        let same = if backend.repeatable { "yes" } else { "NO" };
        writeln!(
            f,
            "  {:<42} {first:>19} {warm:>11}   {same}",
            shorten(&backend.name, 42)
        )?;
    }
    let reference = milliseconds(report.reference.attention_seconds);
    writeln!(
        f,
        "  {:<42} {:>19} {reference:>11}   -",
        "f64 reference", "-"
    )
}

pub(super) fn milliseconds(seconds: f64) -> String {
    let ms = seconds * 1e3;
    let decimals = if ms < 10.0 {
        2
    } else if ms < 100.0 {
        1
    } else {
        0
    };
    format!("{ms:.decimals$} ms")
}

/// At most `limit` characters on one line.
pub(super) fn shorten(text: &str, limit: usize) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if line.chars().count() <= limit {
        return line;
    }
    let kept: String = line.chars().take(limit.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}
