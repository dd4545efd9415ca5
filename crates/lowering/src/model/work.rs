//! What one block of keys costs a stream of query rows.

use std::ops::RangeInclusive;

use flashcube_kernels::{AttendBlueprint, DType, TierName};

use crate::{Instruction, Sass};

/// Work of one block of keys for one stream: the rows that one warpgroup exponentiates.
///
/// Instructions are those of one warp, of which each of the four schedulers holds one a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockWork {
    /// Streams that a multiprocessor works on at a time.
    pub streams: usize,
    /// Query rows of a stream.
    pub rows: usize,
    /// Keys of the block.
    pub block: usize,
    /// FLOP of both products.
    pub flop: f64,
    /// Bytes that both products read from shared memory.
    pub smem_bytes: f64,
    /// Instructions issued.
    pub issued: f64,
    /// Of those, exponentials.
    pub exp2: f64,
    /// Of those, comparisons, selections, conversions, integers.
    pub alu: f64,
    /// Of those, f32 arithmetic; packed pairs count twice.
    pub fma: f64,
}

/// What runs on the units that compare, select, convert and compute with integers.
const ALU: &str =
    "FMNMX|FMNMX3|FSEL|FSETP|SEL|ISETP|F2FP|LOP3|PLOP3|SHF|PRMT|LEA|IADD3|VIADD|VIMNMX";
const FMA: &str = "FADD|FMUL|FFMA|IMAD";
const FMA_PAIRS: &str = "FADD2|FMUL2|FFMA2";
const PRODUCTS: &str = "UTCHMMA|UTCQMMA|UTCOMMA";

impl BlockWork {
    /// A block of the kernel's interior, products by shape, instructions counted in its machine code. None for kernels
    /// that the model does not cover: other tiers, formats and loops it does not find.
    pub fn of(blueprint: &AttendBlueprint, sass: &Sass) -> Option<BlockWork> {
        let sixteen = matches!(blueprint.dtype, DType::F16 | DType::BF16);
        if !sixteen || blueprint.features.weights.encoded() {
            return None;
        }
        let AttendBlueprint { d, d_v, block, .. } = *blueprint;
        let rows = match blueprint.tier {
            TierName::Hopper => 64,
            TierName::Blackwell => 128,
            TierName::Unit | TierName::Plane => return None,
        };
        let streams = blueprint.rows / rows;
        // Queries, keys and values; weights are read from registers or from tensor memory.
        let read = rows * d + block * d + block * d_v;
        let mut work = BlockWork {
            streams,
            rows,
            block,
            flop: (2 * rows * block * (d + d_v)) as f64,
            smem_bytes: (2 * read) as f64,
            issued: 0.0,
            exp2: 0.0,
            alu: 0.0,
            fma: 0.0,
        };
        work.add(&executed(sass, &shortest(sass, |i| i.is("MUFU.EX2"))?), 1.0);
        if blueprint.tier == TierName::Blackwell {
            work.add_roles(sass, (d + block) / 16)?;
        }
        Some(work)
    }

    /// The other roles of a Blackwell kernel share the schedulers: the correction, and a warp that issues products.
    fn add_roles(&mut self, sass: &Sass, products: usize) -> Option<()> {
        let correction = shortest(sass, |i| i.is("LDTM"))?;
        self.add(&executed(sass, &correction), 1.0);
        // Where the loop is unrolled, the shortest of its copies a product.
        let is_product = |i: &&Instruction| i.is(PRODUCTS);
        let each = |range: &RangeInclusive<u64>| {
            let count = sass.within(range).filter(is_product).count();
            (count > 0).then(|| sass.within(range).count() as f64 / count as f64)
        };
        let loops = sass.loops();
        let multiply = loops.iter().filter(|range| each(range).is_some());
        let multiply = multiply
            .min_by(|a, b| f64::total_cmp(&each(a).unwrap_or(0.0), &each(b).unwrap_or(0.0)))?;
        let inside: Vec<_> = sass.within(multiply).collect();
        let blocks =
            inside.iter().copied().filter(|i| is_product(i)).count() as f64 / products as f64;
        // One warp a stream, each on a scheduler of its own: a stream meets it on one of its rounds.
        self.add(&inside, 1.0 / (blocks * self.streams as f64));
        Some(())
    }

    fn add(&mut self, instructions: &[&Instruction], share: f64) {
        let count = |pattern| {
            let found = instructions.iter().filter(|i| i.is(pattern));
            found.count() as f64 * share
        };
        self.issued += instructions.len() as f64 * share;
        self.exp2 += count("MUFU");
        self.alu += count(ALU);
        self.fma += count(FMA) + 2.0 * count(FMA_PAIRS);
    }
}

/// The shortest loop with such an instruction: the interior, where a masked copy is longer.
fn shortest(sass: &Sass, holds: impl Fn(&Instruction) -> bool) -> Option<RangeInclusive<u64>> {
    let mut loops = sass.loops();
    loops.retain(|range| sass.within(range).any(&holds));
    loops
        .into_iter()
        .min_by_key(|range| range.end() - range.start())
}

/// What a usual turn of the loop executes: what a forward branch jumps over (rescaling, which is rare) is left out.
fn executed<'a>(sass: &'a Sass, range: &RangeInclusive<u64>) -> Vec<&'a Instruction> {
    let mut from = 0;
    let mut all = Vec::new();
    for instruction in sass.within(range).filter(|i| !i.is("NOP")) {
        if instruction.address < from {
            continue;
        }
        all.push(instruction);
        let ahead = |target: &u64| *target > instruction.address && range.contains(target);
        from = instruction.branch_target().filter(ahead).unwrap_or(from);
    }
    all
}
