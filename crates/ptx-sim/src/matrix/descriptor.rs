//! Matrix descriptors of wgmma and tcgen05 (PTX ISA, matrix-descriptor format and canonical layouts).

use crate::check::Fault;
use crate::tensor_map::Swizzle;

/// Which dimension is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Major {
    K,
    /// M of the left operand, N of the right one.
    Outer,
}

/// A matrix in shared memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Matrix {
    start: u32,
    leading: u32,
    stride: u32,
    swizzle: Swizzle,
    major: Major,
}

impl Matrix {
    /// The matrix that a wgmma descriptor names.
    pub(crate) fn wgmma(bits: u64, major: Major) -> Result<Self, Fault> {
        let swizzle = match bits >> 62 {
            0 => Swizzle::None,
            1 => Swizzle::B128,
            2 => Swizzle::B64,
            _ => Swizzle::B32,
        };
        Self::new(bits, swizzle, major)
    }

    /// The matrix that a tcgen05 descriptor names.
    pub(crate) fn tcgen05(bits: u64, major: Major) -> Result<Self, Fault> {
        let fault = |problem: &str| {
            Err(Fault::Descriptor {
                bits,
                problem: problem.to_owned(),
            })
        };
        if bits >> 46 & 7 != 1 {
            return fault("bits 46 to 48 must be 1");
        }
        if bits >> 52 & 1 != 0 {
            return fault("absolute leading-dimension addresses are not modelled");
        }
        let swizzle = match bits >> 61 {
            0 => Swizzle::None,
            1 => Swizzle::B128Atom32,
            2 => Swizzle::B128,
            4 => Swizzle::B64,
            6 => Swizzle::B32,
            _ => return fault("bits 61 to 63 name no swizzle"),
        };
        Self::new(bits, swizzle, major)
    }

    fn new(bits: u64, swizzle: Swizzle, major: Major) -> Result<Self, Fault> {
        if bits >> 49 & 7 != 0 {
            return Err(Fault::Descriptor {
                bits,
                problem: "a base offset is not modelled".to_owned(),
            });
        }
        let field = |at: u32| (bits >> at & 0x3fff) as u32 * 16;
        Ok(Self {
            start: field(0),
            leading: field(16),
            stride: field(32),
            swizzle,
            major,
        })
    }

    /// Address of byte `k` (bytes along K) of row `outer` of a K-major matrix, or of byte `outer` (bytes along M or N) of
    /// slice `k` of the other kind.
    pub(crate) fn address(&self, outer: u32, k: u32) -> u32 {
        let span = self.swizzle.span();
        let linear = match (self.major, span) {
            (Major::K, None) => {
                outer % 8 * 16 + outer / 8 * self.stride + k / 16 * self.leading + k % 16
            }
            (Major::K, Some(span)) => outer % 8 * span + outer / 8 * self.stride + k,
            (Major::Outer, None) => {
                outer % 16 + outer / 16 * self.stride + k % 8 * 16 + k / 8 * self.leading
            }
            (Major::Outer, Some(span)) => {
                outer % span + outer / span * self.leading + k % 8 * span + k / 8 * self.stride
            }
        };
        self.swizzle.apply(self.start + linear)
    }

    /// 16-byte pieces of `rows` rows from `first` on and of `k` elements of `bits` bits each, in ascending order.
    pub(crate) fn pieces(&self, first: u32, rows: u32, k: u32, bits: u32) -> Vec<u32> {
        let mut all = Vec::new();
        match self.major {
            Major::K => {
                for row in first..first + rows {
                    for byte in (0..k * bits / 8).step_by(16) {
                        all.push(self.address(row, byte) & !15);
                    }
                }
            }
            Major::Outer => {
                let (start, end) = (first * bits / 8, (first + rows) * bits / 8);
                for slice in 0..k {
                    for byte in (start..end).step_by(16) {
                        all.push(self.address(byte, slice) & !15);
                    }
                }
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Address of the element (outer, k) whose elements have whole bytes.
    pub(crate) fn element(&self, outer: u32, k: u32, bytes: u32) -> u32 {
        match self.major {
            Major::K => self.address(outer, k * bytes),
            Major::Outer => self.address(outer * bytes, k),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits of a wgmma descriptor.
    fn bits(start: u64, leading: u64, stride: u64, swizzle: u64) -> u64 {
        start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | swizzle << 62
    }

    #[test]
    fn every_layout_places_every_element_once() {
        for (swizzle, span) in [(1u64, 128u64), (2, 64), (3, 32)] {
            let stride = 8 * span;
            let matrix = Matrix::wgmma(bits(0x2000, 16, stride, swizzle), Major::K).unwrap();
            let mut seen = std::collections::HashSet::new();
            for row in 0..64 {
                for k in 0..span as u32 {
                    let at = matrix.address(row, k);
                    assert!((0x2000..0x2000 + 64 * span as u32).contains(&at));
                    assert!(seen.insert(at));
                }
            }
            let leading = 16 * span;
            let outer = bits(0x2000, leading, stride, swizzle);
            let matrix = Matrix::wgmma(outer, Major::Outer).unwrap();
            let mut seen = std::collections::HashSet::new();
            for byte in 0..4 * span as u32 {
                for k in 0..16 {
                    assert!(seen.insert(matrix.address(byte, k)));
                }
            }
            assert_eq!(*seen.iter().max().unwrap(), 0x2000 + 64 * span as u32 - 1);
        }
    }

    #[test]
    fn a_base_offset_and_unknown_swizzles_are_refused() {
        assert!(Matrix::wgmma(1 << 49, Major::K).is_err());
        assert!(Matrix::tcgen05(0, Major::K).is_err());
        assert!(Matrix::tcgen05(1 << 46 | 7 << 61, Major::K).is_err());
    }
}
