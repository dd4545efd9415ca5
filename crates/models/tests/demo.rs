//! The demo on the reference, and on backends that are wrong in one way each.
#![cfg(feature = "demo")]

use std::path::PathBuf;

use flashcube_models::demo::{
    Attended, Bound, DemoArgs, DemoBackend, DemoError, DemoReport, MAX_SENTENCES, page, run,
    table::Tables,
};
use flashcube_models::{AttentionCall, ModelError, minilm_dir};
use flashcube_reference::{Options, Tensor4, forward};

/// The model's folder, or None after saying that the test did not run.
fn model() -> Option<PathBuf> {
    let folder = minilm_dir();
    if folder.join("model.safetensors").is_file() {
        return Some(folder);
    }
    let required = std::env::var_os("FLASHCUBE_REQUIRE_MODEL").is_some_and(|v| v == "1");
    assert!(
        !required,
        "model required, but not found in {}",
        folder.display()
    );
    println!("not run: model not found in {}", folder.display());
    None
}

/// The reference with its results rounded to f32.
fn attend(call: &AttentionCall<'_, f32>, lengths: Option<&[usize]>) -> Attended {
    let shape = [call.b, call.h_q, call.s, call.d];
    let [q, k, v] = [call.q, call.k, call.v].map(|x| Tensor4::from_slice(shape, x).unwrap());
    let options = Options {
        scale: call.scale,
        lengths_kv: lengths,
        ..Options::default()
    };
    let result = forward(&q, &k, &v, &options).unwrap();
    Attended {
        out: result.out.data.iter().map(|&x| x as f32).collect(),
        lse: result.lse.iter().map(|&x| x as f32).collect(),
        blueprint: "test/<f64>".into(),
    }
}

type Attend = Box<dyn FnMut(&AttentionCall<'_, f32>) -> Result<Attended, String>>;

/// Runs the demo on `backends` with a bound of 1e-5 on everything.
fn demo(folder: PathBuf, sentences: &[&str], backends: Vec<(&str, Attend)>) -> DemoReport {
    let args = DemoArgs {
        model: folder,
        sentences: sentences.iter().map(|&s| s.into()).collect(),
    };
    let mut backends: Vec<DemoBackend<'_>> = backends
        .into_iter()
        .map(|(name, attend)| DemoBackend {
            name: name.into(),
            attend,
        })
        .collect();
    run(
        &args,
        &|_, _| Bound {
            out: 1e-5,
            lse: 1e-5,
        },
        &mut backends,
    )
    .unwrap()
}

fn correct() -> Attend {
    Box::new(|call| Ok(attend(call, Some(call.lengths))))
}

/// The correct result with one change.
fn sabotaged(mut change: impl FnMut(&AttentionCall<'_, f32>, &mut Attended) + 'static) -> Attend {
    Box::new(move |call| {
        let mut attended = attend(call, Some(call.lengths));
        change(call, &mut attended);
        Ok(attended)
    })
}

#[test]
fn demo_on_the_reference_passes_and_ranks_by_topic() {
    let Some(folder) = model() else { return };
    let report = demo(folder, &[], vec![("reference", correct())]);
    assert!(report.passed(), "{:?}", report.failures);
    assert_eq!(report.backends[0].layers.len(), 6);
    assert!(report.backends[0].repeatable);
    // Rain and storm, onions and garlic, galaxy and planet: nearest to each other.
    for (a, b) in [(3, 4), (6, 7), (9, 10)] {
        assert_eq!(
            (report.sentences[a].nearest, report.sentences[b].nearest),
            (Some(b), Some(a))
        );
    }
    for maps in &report.maps {
        assert_eq!(maps.heads.len(), 72);
        for row in maps.heads.iter().flat_map(|map| map.weights.chunks(maps.n)) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-4);
        }
    }
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(
        json["backends"][0]["layers"].as_array().map(Vec::len),
        Some(6)
    );
}

#[test]
fn demo_finds_each_kind_of_wrong_backend() {
    let Some(folder) = model() else { return };
    let mut calls = 0;
    let backends: Vec<(&str, Attend)> = vec![
        ("padding seen", Box::new(|call| Ok(attend(call, None)))),
        (
            "lse in base 2",
            sabotaged(|_, a| {
                a.lse
                    .iter_mut()
                    .for_each(|x| *x *= std::f32::consts::LOG2_E)
            }),
        ),
        ("one NaN", sabotaged(|_, a| a.out[0] = f32::NAN)),
        (
            "heads swapped",
            sabotaged(|call, a| a.out.rotate_left(call.s * call.d)),
        ),
        (
            "one bit differs",
            sabotaged(move |_, a| {
                calls += 1;
                // The passes have six calls each; only the last call of the second differs.
                a.lse[0] = f32::from_bits(a.lse[0].to_bits() ^ u32::from(calls == 12));
            }),
        ),
        ("out too short", sabotaged(|_, a| a.out.truncate(7))),
        (
            "device lost",
            Box::new(|call| match call.layer {
                3 => Err("device lost".into()),
                _ => Ok(attend(call, Some(call.lengths))),
            }),
        ),
        ("correct", correct()),
    ];
    let names: Vec<&str> = backends.iter().map(|(name, _)| *name).collect();
    let report = demo(folder, &[], backends);
    assert!(!report.passed());
    let failures = |name: &str| -> Vec<&String> {
        report
            .failures
            .iter()
            .filter(|f| f.starts_with(&format!("{name}: ")))
            .collect()
    };
    let has = |name: &str, text: &str| failures(name).iter().any(|f| f.contains(text));
    assert!(has("padding seen", "layer 0 out") && has("padding seen", "layer 0 lse"));
    assert!(
        has("padding seen", "ranks"),
        "{:?}",
        failures("padding seen")
    );
    assert!(has("lse in base 2", "lse: error") && !has("lse in base 2", "out: error"));
    assert!(has("one NaN", "error inf") && has("one NaN", "cosine off by inf"));
    assert!(has("heads swapped", "out: error") && has("heads swapped", "cosine off by"));
    assert_eq!(failures("one bit differs").len(), 1);
    assert!(has("one bit differs", "other bits"));
    assert!(has("out too short", "layer 0: out: 7 values, expected"));
    assert!(has("device lost", "layer 3: device lost"));
    assert!(failures("correct").is_empty());
    // A failing report is still printed and drawn, every backend named.
    let (text, html) = (Tables(&report).to_string(), page::render(&report));
    for name in names {
        assert!(text.contains(name) && html.contains(name), "{name}");
    }
    assert!(text.contains("FAIL  one bit differs") && html.contains("✗ failed"));
}

#[test]
fn page_is_self_contained_and_escapes_what_people_type() {
    let Some(folder) = model() else { return };
    let typed = [
        "<script>alert('1')</script> & \"so on\"",
        "tab\tand\u{7}bell",
        "",
        "naïve 東京 😀",
    ];
    let report = demo(folder, &typed, vec![("a<b & \"c\"", correct())]);
    assert!(report.passed(), "{:?}", report.failures);
    let html = page::render(&report);
    assert!(!html.contains("<script"));
    assert!(
        html.contains("&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt; &amp; &quot;so on&quot;")
    );
    assert!(html.contains("a&lt;b &amp; &quot;c&quot;") && !html.contains("a<b"));
    assert!(html.contains("test/&lt;f64&gt;") && !html.contains('\u{7}'));
    for outside in ["http:", "https:", "src=", "href=", "url(", "@import"] {
        assert!(!html.contains(outside), "{outside}");
    }
    check_nesting(&html);
}

/// Every tag that needs closing is closed, in order.
fn check_nesting(html: &str) {
    let void = ["!doctype", "meta", "circle/", "rect/", "line/", "path/"];
    let mut open = Vec::new();
    for tag in html.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("tag ends");
        let name = tag.split_whitespace().next().unwrap_or_default();
        if let Some(closed) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed));
        } else if !tag.ends_with('/') && !void.contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn page_is_renamed_into_place() {
    let Some(folder) = model() else { return };
    let report = demo(folder, &["One.", "Two."], vec![("reference", correct())]);
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("deep/demo.html");
    page::write(&report, &path).unwrap();
    page::write(&report, &path).unwrap();
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        page::render(&report)
    );
    assert_eq!(
        std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
        1
    );
    // A folder in its place: an error, and nothing left behind.
    let taken = place.path().join("taken");
    std::fs::create_dir_all(taken.join("inside")).unwrap();
    assert!(page::write(&report, &taken).is_err());
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 2);
}

#[test]
fn demo_of_one_or_of_too_many_sentences() {
    let Some(folder) = model() else { return };
    let report = demo(
        folder.clone(),
        &[&"long ".repeat(300)],
        vec![("reference", correct())],
    );
    assert!(report.passed(), "{:?}", report.failures);
    assert_eq!(
        (report.sentences[0].nearest, report.truncations[0].tokens),
        (None, 302)
    );
    assert!(page::render(&report).contains("cut from 302 to 128 tokens"));
    assert!(
        Tables(&report)
            .to_string()
            .contains("cut from 302 to 128 tokens")
    );
    let none = demo(folder.clone(), &["A."], vec![]);
    assert_eq!(none.failures, ["no backend ran"]);
    let args = DemoArgs {
        model: folder,
        sentences: vec![String::new(); MAX_SENTENCES + 1],
    };
    let error = run(&args, &|_, _| Bound { out: 0.0, lse: 0.0 }, &mut []).unwrap_err();
    let DemoError::Model(ModelError::InvalidInput { what, value, limit }) = error else {
        panic!("{error}");
    };
    assert_eq!(
        (what, value, limit),
        ("sentences", MAX_SENTENCES + 1, MAX_SENTENCES)
    );
}
