//! What a multiprocessor does in a cycle.

use crate::Arch;

/// Published rates of one architecture, a cycle and a multiprocessor unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// FLOP of 16-bit matrix instructions with f32 accumulators.
    pub mma_flop: f64,
    /// Bytes of shared memory that operands are read from.
    pub smem_bytes: f64,
    /// Units that exponentiate.
    pub exp2: f64,
    /// Units that compare, select, convert and compute with integers.
    pub alu: f64,
    /// Units that multiply and add f32.
    pub fma: f64,
    /// Instructions of warps that are issued.
    pub issue: f64,
    /// The clock that is assumed, in GHz.
    pub clock_ghz: f64,
    /// Multiprocessors of the card.
    pub multiprocessors: u32,
}

/// CUDA C++ Programming Guide, throughput of native arithmetic instructions: 128 f32 operations, 64 comparisons and
/// conversions, 16 special functions; four schedulers.
const COMMON: Rates = Rates {
    mma_flop: 0.0,
    smem_bytes: 128.0,
    exp2: 16.0,
    alu: 64.0,
    fma: 128.0,
    issue: 4.0,
    clock_ghz: 0.0,
    multiprocessors: 0,
};

impl Rates {
    /// The rates of `arch`, where kernels of these tiers run there.
    ///
    /// Matrix rates are the datasheets' peaks over their clocks (H200 989 TFLOP/s at 1.83 GHz, B200 2250 at 1.85).
    /// The clock of Hopper is what an H200 held in docs/performance.md under these kernels, the mean of the four pairs of
    /// cycles and microseconds there; nobody has measured those of Blackwell here: its datasheet's.
    pub fn of(arch: Arch) -> Option<Rates> {
        let rates = match arch {
            Arch::Sm90a => Rates {
                mma_flop: 4096.0,
                clock_ghz: 1.63,
                ..COMMON
            },
            Arch::Sm100a => Rates {
                mma_flop: 8192.0,
                clock_ghz: 1.85,
                ..COMMON
            },
            // Twice the exponentials of sm_100.
            Arch::Sm103a => Rates {
                mma_flop: 8192.0,
                exp2: 32.0,
                clock_ghz: 1.85,
                ..COMMON
            },
            Arch::Sm80 | Arch::Sm86 | Arch::Sm89 | Arch::Sm120a => return None,
        };
        Some(Rates {
            multiprocessors: arch.multiprocessors(),
            ..rates
        })
    }
}
