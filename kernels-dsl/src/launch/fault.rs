//! Sabotage: what the conformance suite must be able to see.

use core::fmt;

/// A deliberate error in the forward kernel. `verify --mutants` launches each; a suite that
/// passes one of them proves nothing. Never set outside that run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The last key of every sequence is not attended to.
    LastKeyDropped,
    /// The right edge of the band (causal, window) is one key too wide.
    BandRightOffByOne,
    /// The left edge of the window is one key too wide.
    BandLeftOffByOne,
    /// The accumulator is not rescaled when the maximum grows.
    RescaleSkipped,
    /// The accumulator is rounded to f16 after every block.
    F16Accumulate,
    /// P is rounded to bf16 although the product takes f32.
    WeightsRounded,
    /// Query heads are dealt out to key heads round-robin instead of in groups.
    WrongKvHead,
    /// lse is in base 2.
    LseBase2,
    /// The last query row is not written.
    LastRowNotStored,
    /// Values of hidden keys reach the product, so that their NaN spreads.
    HiddenValuesLeak,
    /// Mask and bias of batch entry 0 serve every batch entry.
    MaskOfFirstBatch,
    /// The softcap is left out.
    SoftcapDropped,
    /// ALiBi uses the slope of head 0 for every head.
    SlopeOfFirstHead,
    /// Causal is aligned top-left instead of bottom-right.
    WrongAlignment,
    /// The keys of a packed sequence are taken from where its queries stand.
    KeysWhereQueriesStand,
    /// The last block of keys that a tile's documents reach is not visited.
    DocumentsCutShort,
    /// Results of heads packed into one tile are stored in reverse order.
    PackedHeadsSwapped,
    /// Where roles are split, a row of scores is written over what the other half may still read.
    /// Not among [`ALL`](Fault::ALL): what comes of it depends on timing. It is what a race
    /// detector must report before its silence counts.
    BarrierDropped,
}

impl Fault {
    /// Those whose result is wrong whenever they are launched.
    pub const ALL: [Fault; 17] = [
        Fault::LastKeyDropped,
        Fault::BandRightOffByOne,
        Fault::BandLeftOffByOne,
        Fault::RescaleSkipped,
        Fault::F16Accumulate,
        Fault::WeightsRounded,
        Fault::WrongKvHead,
        Fault::LseBase2,
        Fault::LastRowNotStored,
        Fault::HiddenValuesLeak,
        Fault::MaskOfFirstBatch,
        Fault::SoftcapDropped,
        Fault::SlopeOfFirstHead,
        Fault::WrongAlignment,
        Fault::KeysWhereQueriesStand,
        Fault::DocumentsCutShort,
        Fault::PackedHeadsSwapped,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = String::new();
        for c in format!("{self:?}").chars() {
            if c.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(c.to_ascii_lowercase());
        }
        f.pad(&name)
    }
}
