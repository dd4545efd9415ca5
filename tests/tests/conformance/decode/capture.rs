//! A decode step as a CUDA graph: replays follow what the device's lengths say.

use cubecl::prelude::CubeElement;
use flashcube::{
    AppendOptions, AttendOptions, Backend, DType, DecodeOptions, DeviceWords, KvView, PageTable,
    Tensor, append, attend_decode, plan_decode,
};

/// A step (append one row, attend) captured once and replayed gives what launches give.
#[test]
fn a_captured_step_is_replayed_as_the_cache_grows() {
    let Ok(client) = Backend::Cuda.open() else {
        println!("cuda not run: no device");
        return;
    };
    let (b, h, page, width, d) = (2usize, 2usize, 16usize, 4usize, 64usize);
    let bf16 = |shape: [usize; 4], step: usize| {
        let n: usize = shape.iter().product();
        let value = |i: usize| half::bf16::from_f32(((i * step) % 31) as f32 / 16.0 - 1.0);
        let bytes: Vec<u8> = (0..n).flat_map(|i| value(i).to_le_bytes()).collect();
        Tensor::<4>::contiguous(client.create_from_slice(&bytes), shape, DType::BF16)
    };
    let words = |words: &[u32]| client.create_from_slice(u32::as_bytes(words));
    let table: Vec<u32> = (0..(b * width) as u32).rev().collect();
    let run = |captured: bool| {
        let lengths = words(&[5, 30]);
        // SAFETY: the table names each page once, and lengths stay below its 64 keys.
        let (pages, known) = unsafe {
            let pages = DeviceWords::unchecked(words(&table), 0);
            (pages, DeviceWords::unchecked(lengths.clone(), 0))
        };
        let pool = |step| bf16([b * width, h, page, d], step);
        let table = PageTable::device(pages, width, width);
        let cache = KvView::paged(pool(7), pool(11), table).with_lengths(known);
        let (q, k, v) = (
            bf16([b, 4, 1, d], 3),
            bf16([b, h, 1, d], 5),
            bf16([b, h, 1, d], 13),
        );
        let out = Tensor::<4>::empty(&client, [b, 4, 1, d], DType::BF16);
        let lse = Tensor::<3>::empty(&client, [b, 4, 1], DType::F32);
        let mut options = DecodeOptions {
            attend: AttendOptions {
                out: Some(out.clone()),
                lse: Some(lse),
                ..AttendOptions::default()
            },
            splits: Some(3),
            workspace: None,
        };
        let caps = flashcube::Caps::of(&client);
        let plan = plan_decode(&q, &cache, &options, &caps).unwrap().unwrap();
        options.workspace = Some(Tensor::empty(&client, [plan.workspace], DType::F32));
        let step = || {
            let one = AppendOptions {
                advance: true,
                ..AppendOptions::default()
            };
            append(&client, &cache, &k, &v, &one).unwrap();
            attend_decode(&client, &q, &cache, &options).unwrap();
        };
        let graph = captured.then(|| {
            client.graph_prepare().unwrap();
            step();
            client.start_capture().unwrap();
            step();
            client.stop_capture().unwrap()
        });
        // The warm-up was a step as well.
        for _ in 0..if captured { 3 } else { 4 } {
            match &graph {
                // SAFETY: every buffer of the step is still held.
                Some(graph) => unsafe { graph.replay() }.unwrap(),
                None => step(),
            }
        }
        let bytes = |handle| client.read_one(handle).unwrap().to_vec();
        (bytes(out.handle.clone()), bytes(lengths))
    };
    let (direct, captured) = (run(false), run(true));
    assert_eq!(direct, captured);
    assert_eq!(captured.1[..8], *u32::as_bytes(&[9, 34]));
}
