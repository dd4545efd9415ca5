//! Inputs and conversions.

use flashcube_ptx_sim::{Format, Rounding};

/// Numbers that any run repeats, about uniform in [-1, 1].
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as f64 / (1u64 << 30) as f64 - 1.0
    }
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
    /// `n` values that `format` holds exactly.
    pub(crate) fn exact(&mut self, n: usize, format: Format) -> Vec<f64> {
        (0..n)
            .map(|_| {
                let bits = format.encode(2.0 * self.next(), 0.0, Rounding::Nearest, true);
                format.decode(bits)
            })
            .collect()
    }
}

/// Bytes of values in a format of whole bytes.
pub(crate) fn bytes(values: &[f64], format: Format) -> Vec<u8> {
    let size = format.bits() as usize / 8;
    values
        .iter()
        .flat_map(|&value| {
            let bits = format.encode(value, 0.0, Rounding::Nearest, true);
            bits.to_le_bytes()[..size].to_vec()
        })
        .collect()
}

/// The other way.
pub(crate) fn floats(bytes: &[u8], format: Format) -> Vec<f64> {
    bytes
        .chunks(format.bits() as usize / 8)
        .map(|raw| {
            let bits = raw
                .iter()
                .rev()
                .fold(0u64, |bits, &b| bits << 8 | u64::from(b));
            format.decode(bits)
        })
        .collect()
}
