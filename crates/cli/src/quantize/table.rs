//! The error table of a quantized model.

use flashcube_quantize::model::ModelReport;

use crate::output::Table;

/// Every linear, and what they come to.
pub(super) fn text(report: &ModelReport, peak_memory: Option<u64>) -> String {
    let mut table = Table::new(&[
        "linear",
        ">k",
        ">n",
        ">error %",
        ">rtn %",
        ">held out %",
        ">its rtn %",
        ">s",
        "notes",
    ]);
    let percent = |x: f64| format!("{:.3}", 100.0 * x);
    let part = |loss: f64, output: f64| match output > 0.0 {
        true => percent((loss.max(0.0) / output).sqrt()),
        false => "-".to_owned(),
    };
    for linear in &report.linears {
        let held_out = linear
            .held_out
            .map_or(["-".to_owned(), "-".to_owned()], |held| {
                [held.loss, held.rtn_loss].map(|loss| part(loss, held.output))
            });
        let [held, held_rtn] = held_out;
        let mut notes = Vec::new();
        if let Some(ratio) = linear.ratio {
            notes.push(format!("ratio {ratio:.2}"));
        }
        if linear.divisor {
            notes.push("divisor kept".to_owned());
        }
        if linear.not_finite > 0 {
            notes.push(format!("{} scales not finite", linear.not_finite));
        }
        if linear.dead > 0 {
            notes.push(format!("{} dead channels", linear.dead));
        }
        if linear.took_rtn {
            notes.push("rounding was better, and taken".to_owned());
        }
        if let Some(damping) = linear.damping.filter(|&damping| damping > 0.011) {
            notes.push(format!("damping {damping}"));
        }
        table.row([
            linear.name.clone(),
            linear.k.to_string(),
            linear.n.to_string(),
            part(linear.loss, linear.output),
            part(linear.rtn_loss, linear.output),
            held,
            held_rtn,
            format!("{:.2}", linear.seconds),
            notes.join(", "),
        ]);
    }
    let (mean, rtn) = report.mean_relative();
    let mut text = format!(
        "{table}\n{} to {}: {} linears on {} tokens, mean error {} %, rounding {} %",
        report.method,
        report.format,
        report.linears.len(),
        report.tokens,
        percent(mean),
        percent(rtn),
    );
    if let Some((mean, rtn)) = report.mean_held_out() {
        text += &format!(
            "; held out {} %, rounding {} %",
            percent(mean),
            percent(rtn)
        );
    }
    text += &format!(
        "\n{:.1} s, {:.1} MB written",
        report.seconds,
        report.bytes as f64 / 1e6
    );
    if report.resumed > 0 {
        text += &format!(", {} blocks taken from an earlier run", report.resumed);
    }
    if let Some(bytes) = peak_memory {
        text += &format!(", peak memory {:.0} MB", bytes as f64 / 1e6);
    }
    text + "\n"
}
