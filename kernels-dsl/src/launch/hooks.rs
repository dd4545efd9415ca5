//! Masks, bias and tables of a call: checked, packed, bound.

use cubecl::prelude::{BufferArg, Client, CubeElement};

use super::*;
use crate::attention::{
    LogitFeatures, LogitScalarsLaunch, LogitTensorsLaunch, MaskWidth, TableOffsetsLaunch,
};
use crate::error::InvalidProblem;
use crate::tile::LayoutLaunch;

/// The checked hooks of a call: features for the blueprint, numbers and tables for the launch.
pub(crate) struct Hooks {
    pub(crate) features: LogitFeatures,
    /// Largest element index of mask and bias.
    pub(crate) reach: usize,
    pub(crate) scale: f32,
    softcap: f32,
    left: i32,
    right: i32,
    anchor: i32,
    mask: Option<BoolMask>,
    bias: Option<Tensor<4>>,
    table: Table,
}

/// Words of the table buffer and where its parts start.
#[derive(Default)]
struct Table {
    words: Vec<u32>,
    len_q: usize,
    len_kv: usize,
    doc_q: usize,
    doc_kv: usize,
    slopes: usize,
}

impl Hooks {
    pub(crate) fn check(
        dims: &AttendDims,
        options: &AttendOptions<'_>,
    ) -> Result<Self, InvalidProblem> {
        let scale = options.scale.unwrap_or(1.0 / (dims.d as f32).sqrt());
        if !scale.is_finite() {
            return Err(InvalidProblem::NotFinite {
                name: "scale",
                value: scale,
            });
        }
        if let Some(cap) = options.softcap
            && !(cap.is_finite() && cap > 0.0)
        {
            return Err(InvalidProblem::NotFinite {
                name: "softcap",
                value: cap,
            });
        }
        let softcap = options
            .softcap
            .filter(|_| options.policy.fault != Some(Fault::SoftcapDropped));
        let longest = dims.s_q.max(dims.s_kv);
        // A window no row can leave is no window; this also keeps the edges inside i32.
        let left = options.window_left.filter(|&w| w < longest);
        let right = match options.causal {
            true => Some(0),
            false => options.window_right.filter(|&w| w < longest),
        };
        let full = [dims.b, dims.h_q, dims.s_q, dims.s_kv];
        let mut hooks = Self {
            features: LogitFeatures {
                softcap: softcap.is_some(),
                alibi: options.alibi.is_some(),
                bias: options.bias.is_some(),
                band_left: left.is_some(),
                band_right: right.is_some(),
                documents: options.documents.is_some(),
                mask: options.mask.as_ref().map(|m| m.width),
                lengths: options.lengths_q.is_some() || options.lengths_kv.is_some(),
            },
            reach: 0,
            scale: softcap.map_or(scale, |cap| scale / cap),
            softcap: softcap.unwrap_or(0.0),
            left: left.unwrap_or(0) as i32,
            right: right.unwrap_or(0) as i32,
            anchor: (options.alignment == Alignment::BottomRight) as i32,
            mask: None,
            bias: None,
            table: Table::build(dims, options)?,
        };
        if let Some(mask) = &options.mask {
            hooks.take_mask(mask, full)?;
        }
        if let Some(bias) = &options.bias {
            hooks.take_bias(bias, full)?;
        }
        Ok(hooks)
    }

    fn take_mask(&mut self, mask: &BoolMask, full: [usize; 4]) -> Result<(), InvalidProblem> {
        let strides = broadcast("mask", mask.shape, mask.strides, full)?;
        let size = match mask.width {
            MaskWidth::U8 => 1,
            MaskWidth::U32 => 4,
        };
        let view = Tensor::strided(mask.handle.clone(), full, strides, mask.offset, DType::F32);
        let available = mask.handle.size_in_used() as usize / size;
        if view.reach() > available {
            return Err(InvalidProblem::OutOfBounds {
                tensor: "mask",
                needed: view.reach(),
                available,
            });
        }
        self.reach = self.reach.max(view.reach());
        self.mask = Some(BoolMask {
            strides,
            ..mask.clone()
        });
        Ok(())
    }

    fn take_bias(&mut self, bias: &Tensor<4>, full: [usize; 4]) -> Result<(), InvalidProblem> {
        expect_dtype("bias", bias.dtype, DType::F32)?;
        let strides = broadcast("bias", bias.shape, bias.strides, full)?;
        let view = Tensor::strided(bias.handle.clone(), full, strides, bias.offset, DType::F32);
        view.check_bounds("bias")?;
        self.reach = self.reach.max(view.reach());
        self.bias = Some(view);
        Ok(())
    }

    pub(crate) fn tensors(&self, client: &Client) -> LogitTensorsLaunch {
        let words = |bytes: u64| (bytes as usize).div_ceil(4);
        // SAFETY: lengths are those of the buffers; a byte mask's last word is inside its
        // allocation, which drivers align to 4 bytes.
        let mask = self.mask.as_ref().map(|m| unsafe {
            BufferArg::from_raw_parts(m.handle.clone(), words(m.handle.size_in_used()))
        });
        let bias = self
            .bias
            .as_ref()
            .map(|b| unsafe { BufferArg::from_raw_parts(b.handle.clone(), b.capacity()) });
        let table = (!self.table.words.is_empty()).then(|| {
            let handle = client.create_from_slice(u32::as_bytes(&self.table.words));
            unsafe { BufferArg::from_raw_parts(handle, self.table.words.len()) }
        });
        LogitTensorsLaunch::new(mask.into(), bias.into(), table.into())
    }

    pub(crate) fn scalars(&self, fault: Option<Fault>) -> LogitScalarsLaunch {
        let strided = |strides: [usize; 4], offset| {
            let first = if fault == Some(Fault::MaskOfFirstBatch) {
                0
            } else {
                strides[0]
            };
            LayoutLaunch::new(offset, first, strides[1], strides[2])
        };
        let mask = self
            .mask
            .as_ref()
            .map_or(([0; 4], 0), |m| (m.strides, m.offset));
        let bias = self
            .bias
            .as_ref()
            .map_or(([0; 4], 0), |b| (b.strides, b.offset));
        LogitScalarsLaunch::new(
            f32::NEG_INFINITY,
            self.scale,
            self.softcap,
            self.left + (fault == Some(Fault::BandLeftOffByOne)) as i32,
            self.right + (fault == Some(Fault::BandRightOffByOne)) as i32,
            match fault {
                Some(Fault::WrongAlignment) => 1 - self.anchor,
                _ => self.anchor,
            },
            strided(mask.0, mask.1),
            mask.0[3],
            strided(bias.0, bias.1),
            bias.0[3],
        )
    }

    pub(crate) fn offsets(&self) -> TableOffsetsLaunch {
        let t = &self.table;
        TableOffsetsLaunch::new(t.len_q, t.len_kv, t.doc_q, t.doc_kv, t.slopes)
    }
}

impl Table {
    fn build(dims: &AttendDims, options: &AttendOptions<'_>) -> Result<Self, InvalidProblem> {
        let mut table = Self::default();
        if options.lengths_q.is_some() || options.lengths_kv.is_some() {
            table.len_q = table.lengths("lengths_q", options.lengths_q, dims.b, dims.s_q)?;
            table.len_kv = table.lengths("lengths_kv", options.lengths_kv, dims.b, dims.s_kv)?;
        }
        if let Some((q, k)) = options.documents {
            expect_entries("documents of queries", q.len(), dims.b * dims.s_q)?;
            expect_entries("documents of keys", k.len(), dims.b * dims.s_kv)?;
            table.doc_q = table.append(q.iter().copied());
            table.doc_kv = table.append(k.iter().copied());
        }
        if let Some(slopes) = options.alibi {
            expect_entries("alibi", slopes.len(), dims.h_q)?;
            if let Some(&value) = slopes.iter().find(|s| !s.is_finite()) {
                return Err(InvalidProblem::NotFinite {
                    name: "alibi",
                    value,
                });
            }
            let of = |h: usize| match options.policy.fault {
                Some(Fault::SlopeOfFirstHead) => slopes[0],
                _ => slopes[h],
            };
            table.slopes = table.append((0..dims.h_q).map(|h| of(h).to_bits()));
        }
        Ok(table)
    }

    fn append(&mut self, words: impl Iterator<Item = u32>) -> usize {
        let at = self.words.len();
        self.words.extend(words);
        at
    }

    fn lengths(
        &mut self,
        name: &'static str,
        lengths: Option<&[usize]>,
        b: usize,
        limit: usize,
    ) -> Result<usize, InvalidProblem> {
        let Some(lengths) = lengths else {
            return Ok(self.append((0..b).map(|_| limit as u32)));
        };
        expect_entries(name, lengths.len(), b)?;
        if let Some((index, &value)) = lengths.iter().enumerate().find(|&(_, &n)| n > limit) {
            return Err(InvalidProblem::Entry {
                name,
                index,
                value,
                limit,
            });
        }
        Ok(self.append(lengths.iter().map(|&n| n as u32)))
    }
}
