//! Fields of 2 to 8 bits in 32-bit words.
//!
//! Every int format here stores runs of fields as one little-endian bit stream: field i occupies
//! bits i*bits .. (i+1)*bits, low bits first, and may cross into the next word (3 bits: fields 10
//! and 21 of each 32).

/// How the words of many parallel runs lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// [words, runs]: packed down the first axis, as GPTQ packs k.
    Down,
    /// [runs, words]: packed along the last axis, as GPTQ packs the zero points' n.
    Along,
}

/// Words that a run of `fields` fields takes.
pub(crate) fn words_for(fields: usize, bits: u32) -> usize {
    (fields as u64 * u64::from(bits)).div_ceil(32) as usize
}

/// `runs` runs of `fields` fields each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Runs {
    pub(crate) runs: usize,
    pub(crate) fields: usize,
    pub(crate) bits: u32,
    pub(crate) order: Order,
}

impl Runs {
    fn words(&self) -> usize {
        words_for(self.fields, self.bits)
    }

    /// Position of word `word` of run `run`.
    fn at(&self, run: usize, word: usize) -> usize {
        match self.order {
            Order::Down => word * self.runs + run,
            Order::Along => run * self.words() + word,
        }
    }

    /// Visits every (run, field), walking memory forwards.
    fn visit(&self, mut each: impl FnMut(usize, usize)) {
        match self.order {
            Order::Down => {
                (0..self.fields).for_each(|field| (0..self.runs).for_each(|run| each(run, field)))
            }
            Order::Along => {
                (0..self.runs).for_each(|run| (0..self.fields).for_each(|field| each(run, field)))
            }
        }
    }

    /// Packs `code(run, field)`, which must be below 2^bits; `slot` maps a logical field to its
    /// place in the run.
    pub(crate) fn pack(
        &self,
        slot: fn(usize) -> usize,
        code: impl Fn(usize, usize) -> u8,
    ) -> Vec<u32> {
        let mut words = vec![0u32; self.runs * self.words()];
        self.visit(|run, field| {
            let value = u32::from(code(run, field));
            let bit = slot(field) * self.bits as usize;
            let (word, shift) = (bit / 32, bit as u32 % 32);
            words[self.at(run, word)] |= value << shift;
            if shift + self.bits > 32 {
                words[self.at(run, word + 1)] |= value >> (32 - shift);
            }
        });
        words
    }

    /// Calls `put(run, field, code)` for every field of `words`, whose length the caller has
    /// checked.
    pub(crate) fn unpack(
        &self,
        words: &[u32],
        slot: fn(usize) -> usize,
        mut put: impl FnMut(usize, usize, u8),
    ) {
        let mask = (1u32 << self.bits) - 1;
        self.visit(|run, field| {
            let bit = slot(field) * self.bits as usize;
            let (word, shift) = (bit / 32, bit as u32 % 32);
            let mut value = words[self.at(run, word)] >> shift;
            if shift + self.bits > 32 {
                value |= words[self.at(run, word + 1)] << (32 - shift);
            }
            put(run, field, (value & mask) as u8);
        });
    }
}

/// Logical field i sits in place i.
pub(crate) fn plain(field: usize) -> usize {
    field
}
