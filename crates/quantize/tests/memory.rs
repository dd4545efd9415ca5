//! Memory follows the largest block, not the model: a program of its own, so that nothing else
//! allocates while it counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use flashcube_quantize::model::{Method, ModelOptions, Target, quantize_model};
use flashcube_quantize::{GptqOptions, GridOptions};

#[path = "suite/tiny.rs"]
#[allow(dead_code)]
mod tiny;

/// Bytes allocated, and the most there were at once.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HIDDEN: usize = 128;
const WIDE: usize = 256;
/// f32 linears of a block.
const BLOCK: usize = 4 * (3 * HIDDEN * HIDDEN + 3 * WIDE * HIDDEN);

/// What quantizing a model of so many blocks takes above what was there before.
fn peak(blocks: usize) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny::sized_llama(&folder.path().join("llama"), blocks, HIDDEN, WIDE);
    let method = Method::Gptq(GptqOptions::new(GridOptions::new(4, Some(64))));
    let options = ModelOptions {
        shard_bytes: BLOCK,
        ..ModelOptions::new(method, Target::parse("gptq_v2", 4).unwrap())
    };
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let (seen, out) = (tiny::texts(2, 1), folder.path().join("out"));
    let attend = &mut tiny::attend;
    quantize_model(&model, &seen, &[], &out, &options, attend, &mut |_| ()).unwrap();
    PEAK.load(Ordering::Relaxed) - before
}

#[test]
fn a_longer_model_takes_no_more_memory() {
    // faer reserves twice the last cache, once for every thread that multiplies: one thread, and a
    // run before those that count.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1);
    pool.build_global().unwrap();
    peak(1);
    let (short, long) = (peak(2), peak(12));
    println!("2 blocks: {short} bytes, 12 blocks: {long} bytes, a block's weights: {BLOCK}");
    // Names and errors of the linears may add up, weights must not.
    assert!(long < short + BLOCK / 2, "{short} {long}");
}
