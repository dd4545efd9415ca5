//! What one block of keys costs a stream of query rows.

use std::ops::RangeInclusive;

use flashcube_kernels::attention::WeightFormat;
use flashcube_kernels::{AttendBlueprint, DType, OperandFormat, TierName};

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
    /// 16-bit FLOP that take as long.
    pub as_sixteen_bit: f64,
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
        let features = blueprint.features;
        if !sixteen || features.weights.encoded() && features.operands.is_none() {
            return None;
        }
        let AttendBlueprint { d, d_v, block, .. } = *blueprint;
        let rows = match blueprint.tier {
            TierName::Hopper => 64,
            TierName::Blackwell => 128,
            TierName::Unit | TierName::Plane => return None,
        };
        let cubes = blueprint.cubes_of_tile();
        let streams = blueprint.rows / cubes / rows;
        let operands = Operands::of(blueprint);
        let Operands { scores, values } = operands;
        // Queries, and keys and values, of which cubes of a pair have half; weights are read from registers or from
        // tensor memory.
        let shared = block * scores.bytes(d) + d_v * values.bytes(block);
        let read = rows * scores.bytes(d) + shared / cubes;
        let scales = scores.scales(d, block) + values.scales(block, d_v);
        // Those of weights in four bits.
        let scales = scales
            + if values.bits == 4 {
                values.scales(block, rows)
            } else {
                0
            };
        let flop = |depth: usize| (2 * rows * block * depth) as f64;
        let mut work = BlockWork {
            streams,
            rows,
            block,
            flop: flop(d + d_v),
            as_sixteen_bit: flop(d) * scores.share() + flop(d_v) * values.share(),
            smem_bytes: (read + scales) as f64,
            issued: 0.0,
            exp2: 0.0,
            alu: 0.0,
            fma: 0.0,
        };
        work.add(&executed(sass, &shortest(sass, |i| i.is("MUFU.EX2"))?), 1.0);
        if blueprint.tier == TierName::Blackwell {
            // Each takes 32 bytes of a row.
            work.add_roles(sass, (scores.bytes(d) + values.bytes(block)) / 32)?;
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

/// Operands of a product: bits of an element, and elements that a scale factor and a row of four of them have.
#[derive(Clone, Copy)]
struct Operand {
    bits: usize,
    /// 0 without scale factors.
    quad: usize,
}

/// Of both products.
struct Operands {
    scores: Operand,
    values: Operand,
}

impl Operands {
    fn of(blueprint: &AttendBlueprint) -> Self {
        let coded = |format: OperandFormat| Operand {
            bits: format.bits(),
            quad: if format.unscaled() { 0 } else { format.quad() },
        };
        let wide = Operand { bits: 16, quad: 0 };
        let rule = Default::default();
        let Some(scores) = blueprint.features.operands else {
            return Self {
                scores: wide,
                values: wide,
            };
        };
        let values = match blueprint.features.weights {
            WeightFormat::Nvfp4 => OperandFormat::Nvfp4 { exponent: 0 },
            WeightFormat::Mxfp4(_) => OperandFormat::Mxfp4(rule),
            _ if scores.unscaled() => scores,
            WeightFormat::Wide | WeightFormat::E4m3 => OperandFormat::Mxfp8(rule),
        };
        Self {
            scores: coded(scores),
            values: coded(values),
        }
    }
}

impl Operand {
    /// Bytes of `depth` elements of a row.
    fn bytes(self, depth: usize) -> usize {
        depth * self.bits / 8
    }

    /// Bytes of the scale factors of `rows` rows: a word of a tile of 128 rows for every four groups.
    fn scales(self, depth: usize, rows: usize) -> usize {
        match self.quad {
            0 => 0,
            quad => depth.div_ceil(quad) * rows.div_ceil(128) * 512,
        }
    }

    /// Time that a product takes of what one of 16-bit operands does: the datasheets' rates of dense products. What sm_103
    /// gains with FP4 it does by instructions of depth 96, which are not issued here.
    fn share(self) -> f64 {
        self.bits as f64 / 16.0
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
