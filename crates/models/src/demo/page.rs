//! The page of a demo run: one self-contained HTML file.

use std::path::Path;

use super::table::{milliseconds, shorten};
use super::{BackendReport, COSINE_LIMIT, DemoReport, Shapes, similarity, svg};

/// Sentences of more tokens get no overview of all heads, the first sentence apart.
const OVERVIEW_LIMIT: usize = 40;
/// Labelled maps of more tokens take the full width of the page.
const NARROW_MAP: usize = 20;

/// Renders the page. It refers to nothing outside itself and follows the reader's light or dark
/// theme.
pub fn render(report: &DemoReport) -> String {
    let sections = [
        head(report),
        flow(report),
        sentences(report),
        errors(report),
        attention(report),
        times(report),
    ];
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>flashcube demo: sentence similarity</title>\n<style>\n{}</style>\n<main>\n{}</main>\n</html>\n",
        include_str!("page.css"),
        sections.concat()
    )
}

/// Writes the page under a temporary name in the same folder, then renames it, so that a reader
/// never sees half a page. Creates the folder.
///
/// # Errors
/// Those of the file system.
pub fn write(report: &DemoReport, path: &Path) -> std::io::Result<()> {
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        std::fs::create_dir_all(folder)?;
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{}.partial", std::process::id()));
    let written =
        std::fs::write(&partial, render(report)).and_then(|()| std::fs::rename(&partial, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&partial);
    }
    written
}

/// Text for element content and quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            // Not allowed in HTML, whether written out or as a reference.
            c if c.is_control() && !c.is_whitespace() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

fn head(report: &DemoReport) -> String {
    let Shapes { layers, h, b, .. } = report.shapes;
    let (class, verdict) = if report.passed() {
        ("pass", "✓ every check passed")
    } else {
        ("fail", "✗ failed")
    };
    let failures: String = report
        .failures
        .iter()
        .map(|f| format!("<p class=\"fail\">{}</p>\n", escape(f)))
        .collect();
    let names: Vec<String> = report.finished().map(|b| escape(&b.name)).collect();
    let names = match names.as_slice() {
        [] => "no backend".into(),
        [name] => name.clone(),
        [first @ .., last] => format!("{} and {last}, each in turn", first.join(", ")),
    };
    let worst = report
        .backends
        .iter()
        .map(BackendReport::worst_share_of_bound)
        .fold(0.0, f64::max);
    let difference = report
        .finished()
        .map(|b| b.max_cosine_difference)
        .fold(0.0, f64::max);
    let facts = [
        ("sentences", b.to_string()),
        ("layers × heads", format!("{layers} × {h}")),
        ("backends", report.backends.len().to_string()),
        ("largest error / its bound", format!("{worst:.2}")),
        ("cosines off the f64 run by", format!("{difference:.1e}")),
    ];
    let facts: String = facts
        .iter()
        .map(|(name, fact)| format!("<div><dt>{name}</dt><dd>{fact}</dd></div>"))
        .collect();
    format!(
        "<h1>Which sentences mean the same?</h1>\n<p class=\"verdict {class}\">{verdict}</p>\n\
         {failures}<p>A sentence model (MiniLM, {layers} layers) placed {b} sentences in a space of \
         meanings. Every attention inside it was computed on {names}, then checked against a reference in \
         double precision.</p>\n<dl class=\"facts\">{facts}</dl>\n"
    )
}

fn flow(report: &DemoReport) -> String {
    let Shapes {
        layers,
        b,
        h,
        s,
        d,
        tokens,
    } = report.shapes;
    let cuts: String = report
        .truncations
        .iter()
        .map(|cut| {
            let number = cut.sentence + 1;
            format!(
                "<p>Sentence {number} was cut from {} to {} tokens.</p>",
                cut.tokens, cut.kept
            )
        })
        .collect();
    format!(
        "<h2>What ran where</h2>\n<ol class=\"flow\"><li>tokens <small>host</small></li>\
         <li>embeddings <small>host, f32</small></li><li>q, k, v <small>host, f32</small></li>\
         <li class=\"kernel\">attention <small>kernel, f32</small></li>\
         <li>feed-forward <small>host, f32</small></li><li>mean, cosine <small>host</small></li></ol>\n\
         <p class=\"soft\">The middle three steps repeat for each of the {layers} layers. One call covers \
         <span class=\"nowrap\">[b {b}, h {h}, s {s}, d {d}]</span>; the {tokens} real tokens are padded to the longest sentence and \
         the padded keys hidden. The f64 run does every step in double precision on the host, with \
         the reference attention.</p>{cuts}\n"
    )
}

fn sentences(report: &DemoReport) -> String {
    let Some(shown) = report.shown() else {
        return String::new();
    };
    let count = report.sentences.len();
    let header: String = (1..=count)
        .map(|j| format!("<th scope=\"col\">{j}</th>"))
        .collect();
    let mut matrix = String::new();
    let mut list = String::new();
    for (i, sentence) in report.sentences.iter().enumerate() {
        let number = i + 1;
        let row = &shown.similarity[i];
        let nearest = similarity::nearest(row, i);
        matrix += &format!("<tr><th scope=\"row\">{number}</th>");
        for (j, &cosine) in row.iter().enumerate() {
            let near = if nearest == Some(j) { "near" } else { "" };
            let deep = if cosine > 0.68 { "deep" } else { "" };
            let tint = cosine.clamp(0.0, 1.0);
            let other = escape(&shorten(&report.sentences[j].text, 80));
            matrix += &format!(
                "<td class=\"{near} {deep}\" style=\"--c:{tint:.2}\" title=\"{other}\">{cosine:.2}</td>"
            );
        }
        matrix += "</tr>";
        let text = escape(&sentence.text);
        list += &format!("<tr><td>{number}</td><td class=\"text said\">{text}</td>");
        list += &match nearest {
            Some(j) => {
                let (other, cosine) = (escape(&shorten(&report.sentences[j].text, 90)), row[j]);
                let off = (cosine - report.reference.similarity[i][j]).abs();
                let j = j + 1;
                format!(
                    "<td class=\"to\">{j}</td><td class=\"text\">{other}</td><td>{cosine:.3}</td><td class=\"off\">{off:.0e}</td></tr>"
                )
            }
            None => {
                "<td></td><td class=\"text\">no other sentence</td><td></td><td class=\"off\"></td></tr>".into()
            }
        };
    }
    let name = escape(&shown.name);
    // In rem: cells stay readable when there are many and compact when there are few.
    let (narrow, wide) = (2.2 + 2.4 * count as f64, 2.2 + 5.0 * count as f64);
    format!(
        "<h2>Similarity</h2>\n<div class=\"card scroll\"><table class=\"list pairs\"><thead><tr><th>#</th>\
         <th class=\"text\">sentence</th><th>#</th><th class=\"text\">nearest</th><th>cosine</th>\
         <th>off f64 by</th></tr></thead><tbody>{list}</tbody></table></div>\n\
         <figure class=\"card\"><div class=\"scroll\"><table class=\"matrix\" style=\"min-width:{narrow}rem;max-width:{wide}rem\"><thead><tr><td></td>{header}</tr></thead>\
         <tbody>{matrix}</tbody></table></div><figcaption>Cosine of every pair, with the attention by {name}. \
         The frame marks the nearest other sentence of each row.</figcaption></figure>\n{}",
        agreement(report)
    )
}

fn agreement(report: &DemoReport) -> String {
    let rows: String = report.finished()
        .map(|backend| {
            let (name, off) = (escape(&backend.name), backend.max_cosine_difference);
            let (class, ranking) = match backend.misranking {
                None => ("pass", "same"),
                Some(_) => ("fail", "other"),
            };
            let repeats = if backend.repeatable { "yes" } else { "no" };
            format!(
                "<tr><td class=\"text\">{name}</td><td class=\"{class}\">{ranking}</td><td>{off:.1e}</td><td>{repeats}</td></tr>"
            )
        })
        .collect();
    format!(
        "<div class=\"card scroll\"><table class=\"list\"><thead><tr><th class=\"text\">backend</th>\
         <th>ranking as f64</th><th>largest cosine difference (limit {COSINE_LIMIT:e})</th>\
         <th>second pass same bits</th></tr></thead><tbody>{rows}</tbody></table></div>\n"
    )
}

fn errors(report: &DemoReport) -> String {
    let legend: String = report
        .backends
        .iter()
        .enumerate()
        .map(|(i, backend)| {
            let name = escape(&backend.name);
            let series = svg::series(i);
            format!("<li><svg width=\"12\" height=\"12\" aria-hidden=\"true\"><circle class=\"s{series}\" cx=\"6\" cy=\"6\" r=\"4\"/></svg>{name}</li>")
        })
        .collect();
    let out = svg::error_plot("the attention output", &report.backends, |check| check.out);
    let lse = svg::error_plot("the log-sum-exp", &report.backends, |check| check.lse);
    let tables: String = report.backends.iter().map(error_table).collect();
    format!(
        "<h2>Errors of each layer</h2>\n<p>At every layer the kernel's result is compared with the f64 \
         reference on the very same q, k and v, so the errors of one layer do not hide in the next.</p>\n\
         <ul class=\"legend\">{legend}</ul>\n<div class=\"plots\"><figure class=\"card\"><h3>attention output</h3>{out}</figure>\
         <figure class=\"card\"><h3>log-sum-exp</h3>{lse}</figure></div>\n\
         <p class=\"soft\">Filled: largest absolute error. Hollow: root mean square. Line: the bound that the \
         largest error must not pass. Logarithmic axes; padded query rows are left out, since nothing \
         reads them.</p>\n{tables}"
    )
}

fn error_table(backend: &BackendReport) -> String {
    let rows: String = backend
        .layers
        .iter()
        .map(|check| {
            let (class, result) = if check.passed() { ("pass", "pass") } else { ("fail", "fail") };
            let (out, lse) = (check.out, check.lse);
            format!(
                "<tr><td>{}</td><td>{:.2e}</td><td>{:.2e}</td><td>{:.2e}</td><td>{:.2e}</td><td>{:.2e}</td>\
                 <td>{:.2e}</td><td>{:.3}</td><td>{:.1}</td><td class=\"{class}\">{result}</td><td class=\"text\"><code>{}</code></td></tr>",
                check.layer, out.max, out.rms, out.bound, lse.max, lse.rms, lse.bound,
                check.max_abs_out, check.max_abs_score, escape(&check.blueprint)
            )
        })
        .collect();
    let error = backend.error.as_deref().map_or(String::new(), |error| {
        format!("<p class=\"fail\">{}</p>", escape(error))
    });
    format!(
        "<details><summary>{}: the numbers</summary>{error}<div class=\"card scroll\"><table class=\"list\"><thead><tr><th>layer</th>\
         <th>out max</th><th>out RMS</th><th>bound</th><th>lse max</th><th>lse RMS</th><th>bound</th>\
         <th>max |out|</th><th>max |score|</th><th>result</th><th class=\"text\">kernel</th></tr></thead><tbody>{rows}</tbody></table></div></details>\n",
        escape(&backend.name)
    )
}

fn attention(report: &DemoReport) -> String {
    let (Some(shown), Some(first)) = (report.shown(), report.maps.first()) else {
        return String::new();
    };
    let tokens = &report.sentences[0].tokens;
    let wide = if tokens.len() > NARROW_MAP {
        " wide"
    } else {
        ""
    };
    let labelled: String = first
        .sharpest_heads()
        .iter()
        .map(|map| {
            let drawing = svg::head_map(map, tokens);
            let (layer, head) = (map.layer, map.head);
            format!("<figure class=\"card{wide}\"><h3>layer {layer}, head {head}</h3><div class=\"scroll\">{drawing}</div></figure>")
        })
        .collect();
    let legend: String = svg::legend()
        .map(|(shade, weight)| {
            format!("<li><span class=\"swatch h{shade}\"></span>{weight:.2}</li>")
        })
        .collect();
    let overviews: String = report
        .maps
        .iter()
        .zip(&report.sentences)
        .enumerate()
        .filter(|(i, (maps, _))| *i == 0 || maps.n <= OVERVIEW_LIMIT)
        .map(|(i, (maps, sentence))| {
            let drawing = svg::overview(maps, report.shapes.h);
            let (number, text) = (i + 1, escape(&shorten(&sentence.text, 100)));
            let open = if i == 0 { " open" } else { "" };
            format!("<details{open}><summary>{number}. {text}</summary><div class=\"card scroll overview\">{drawing}</div></details>")
        })
        .collect();
    format!(
        "<h2>What the heads look at</h2>\n<p>“{}”</p>\n<p class=\"soft\">Each row is a token asking, each column a token \
         answering; rows sum to 1. Of each layer the head is shown that looks most sharply at other words. \
         The weights are exp(score − lse): the scores recomputed on the host from the q and k given to \
         the kernel, the lse as returned by {}. The kernel itself never stores them.</p>\n\
         <ul class=\"legend\"><li>weight</li>{legend}</ul>\n<div class=\"maps\">{labelled}</div>\n\
         <h2>All heads</h2>\n<p class=\"soft\">Layers down, heads across; sentences of more than {OVERVIEW_LIMIT} tokens are left out.</p>\n{overviews}",
        escape(&report.sentences[0].text),
        escape(&shown.name)
    )
}

fn times(report: &DemoReport) -> String {
    let reference = report.reference.attention_seconds;
    let slowest = report
        .finished()
        .map(|backend| backend.warm_seconds)
        .fold(reference, f64::max);
    let row = |name: &str, first: Option<f64>, warm: f64| {
        let share = if slowest > 0.0 {
            warm / slowest * 100.0
        } else {
            0.0
        };
        let first = first.map_or("–".into(), milliseconds);
        let (name, warm) = (escape(name), milliseconds(warm));
        format!(
            "<tr><td class=\"text\">{name}</td><td>{first}</td><td>{warm}</td><td><span class=\"bar\" style=\"width:{share:.1}%\"></span></td></tr>"
        )
    };
    let rows: String = report
        .finished()
        .map(|backend| {
            row(
                &backend.name,
                Some(backend.first_seconds),
                backend.warm_seconds,
            )
        })
        .chain([row("f64 reference, on the host", None, reference)])
        .collect();
    format!(
        "<h2>Time</h2>\n<figure class=\"card\"><div class=\"scroll\"><table class=\"list bars\"><thead><tr><th class=\"text\">backend</th>\
         <th>first pass</th><th>second pass</th><th></th></tr></thead><tbody>{rows}</tbody></table></div>\
         <figcaption>Wall time of the {} attentions together, one pass each, copies to and from the \
         device included; the first pass also compiles. The problems are small, so that starting and copying \
         weigh more than arithmetic: this is no benchmark.</figcaption></figure>\n",
        report.shapes.layers
    )
}
