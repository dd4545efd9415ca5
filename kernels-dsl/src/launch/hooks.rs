//! Masks, bias and tables of a call: checked, packed, bound.

use cubecl::prelude::{BufferArg, Client, CubeElement};

use super::*;
use crate::attention::{
    LogitFeatures, LogitScalarsLaunch, LogitTensorsLaunch, MaskWidth, ScaledBy, TableOffsetsLaunch,
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
    alignment: Alignment,
    mask: Option<BoolMask>,
    bias: Option<Tensor<4>>,
    sequences: Vec<Sequence>,
    table: Table,
    /// Tables that the host does not know.
    device: DeviceTables,
    /// How tiles are split.
    pub(crate) splits: SplitPlan,
}

/// Lengths and pages that only the device knows.
#[derive(Default)]
struct DeviceTables {
    lengths: Option<DeviceWords>,
    pages: Option<DeviceWords>,
    scales: Option<CacheScales>,
}

/// Words of the table buffer and where its parts start.
#[derive(Default)]
struct Table {
    words: Vec<u32>,
    len_q: usize,
    len_kv: usize,
    first_q: usize,
    first_kv: usize,
    doc_q: usize,
    doc_kv: usize,
    slopes: usize,
    tiles: usize,
    sinks: usize,
    pages: usize,
    page_row: usize,
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
        let sequences = sequences(dims, options)?;
        let mut hooks = Self {
            features: LogitFeatures {
                softcap: softcap.is_some(),
                alibi: options.alibi.is_some(),
                bias: options.bias.is_some(),
                band_left: left.is_some(),
                band_right: right.is_some(),
                documents: options.documents.is_some(),
                mask: options.mask.as_ref().map(|m| m.width),
                lengths: options.lengths_q.is_some()
                    || options.lengths_kv.is_some()
                    || options.cu_seqlens.is_some(),
                varlen: options.cu_seqlens.is_some(),
                sinks: options.sinks.is_some(),
                ..LogitFeatures::default()
            },
            reach: 0,
            scale: softcap.map_or(scale, |cap| scale / cap),
            softcap: softcap.unwrap_or(0.0),
            left: left.unwrap_or(0) as i32,
            right: right.unwrap_or(0) as i32,
            alignment: options.alignment,
            mask: None,
            bias: None,
            table: Table::build(dims, options, &sequences)?,
            sequences,
            device: DeviceTables::default(),
            splits: SplitPlan::WHOLE,
        };
        if let Some(mask) = &options.mask {
            hooks.take_mask(mask, full)?;
        }
        if let Some(bias) = &options.bias {
            hooks.take_bias(bias, full)?;
        }
        Ok(hooks)
    }

    /// Queries of the longest sequence.
    pub(crate) fn longest_q(&self) -> usize {
        self.sequences.iter().map(|s| s.len_q).max().unwrap_or(0)
    }

    /// Keys of the longest sequence.
    pub(crate) fn longest_kv(&self) -> usize {
        self.sequences.iter().map(|s| s.len_kv).max().unwrap_or(0)
    }

    /// The hooks of a decode: tiles are not listed, and lengths and pages are the cache's.
    pub(crate) fn take_cache(&mut self, cache: &KvView<'_>) -> Result<(), InvalidProblem> {
        self.features.unlisted = true;
        if let Some(lengths) = &cache.lengths {
            self.features.lengths = true;
            self.features.device_lengths = true;
            self.table.len_kv = lengths.offset;
            self.device.lengths = Some(lengths.clone());
        }
        if let Some(scales) = &cache.scales {
            self.features.codes = Some(match scales.k.shape[0] {
                1 => ScaledBy::Head,
                _ => ScaledBy::Page,
            });
            self.device.scales = Some(scales.clone());
        }
        let Some(pages) = &cache.pages else {
            return Ok(());
        };
        self.features.page = Some(cache.k.shape[2] as u32);
        self.table.page_row = pages.row();
        match pages.source() {
            PageSource::Host(words) => {
                let used = |s: usize| self.sequences[s].len_kv;
                check_pages(words, pages.width(), cache, used)?;
                self.table.pages = self.table.append(words.iter().copied());
            }
            PageSource::Device(words) => {
                self.features.device_pages = true;
                self.table.pages = words.offset;
                self.device.pages = Some(words.clone());
            }
        }
        Ok(())
    }

    /// Bytes of an element of k and v.
    pub(crate) fn kv_size(&self, dtype: DType) -> usize {
        match self.features.codes {
            Some(_) => DType::E4M3.size(),
            None => dtype.size(),
        }
    }

    /// Most keys that a tile of `queries` queries can see of a sequence.
    pub(crate) fn widest_span(&self, queries: usize) -> usize {
        let left = self.features.band_left.then_some(self.left as usize);
        let right = self.features.band_right.then_some(self.right as usize);
        match (left, right) {
            (Some(left), Some(right)) => self.longest_kv().min(left + queries + right),
            _ => self.longest_kv(),
        }
    }

    /// Puts the tiles of a forward with this blueprint into the table, in place of another one's;
    /// returns how many there are.
    pub(crate) fn list_tiles(&mut self, dims: &AttendDims, blueprint: &AttendBlueprint) -> usize {
        let edge = |on: bool, width: i32| on.then_some(width as usize);
        let band = PlanBand {
            left: edge(self.features.band_left, self.left),
            right: edge(self.features.band_right, self.right),
            alignment: self.alignment,
        };
        let sizes = TileSizes {
            rows: blueprint.rows,
            pack: blueprint.pack,
            block: blueprint.block,
        };
        let sequences = &self.sequences;
        let tiles = match self.features.documents {
            false => plan_tiles(sequences, sizes, band, |s, _| 0..sequences[s].len_kv),
            true => {
                // Ids of a batch entry.
                let words = &self.table.words;
                let of = |first: usize, batch: usize, s: usize| &words[first + batch * s..][..s];
                let keys = |batch| of(self.table.doc_kv, batch, dims.s_kv);
                let queries = |batch| of(self.table.doc_q, batch, dims.s_q);
                let spans: Vec<DocumentSpans> = sequences
                    .iter()
                    .enumerate()
                    .map(|(batch, s)| DocumentSpans::of(&keys(batch)[..s.len_kv]))
                    .collect();
                let cut = match blueprint.fault {
                    Some(Fault::DocumentsCutShort) => blueprint.block,
                    _ => 0,
                };
                plan_tiles(sequences, sizes, band, |batch, rows| {
                    let span = spans[batch].covering(&queries(batch)[rows]);
                    span.start..span.end.saturating_sub(cut).max(span.start)
                })
            }
        };
        if self.table.tiles > 0 {
            self.table.words.truncate(self.table.tiles);
        }
        self.table.tiles = self.table.append(tiles.iter().flat_map(ListedTile::words));
        tiles.len()
    }

    /// The sequences, as tables count them.
    pub(crate) fn sequences(&self) -> &[Sequence] {
        &self.sequences
    }

    /// Puts words behind everything else in the table, the tiles as well; returns where they start.
    pub(crate) fn append(&mut self, words: Vec<u32>) -> usize {
        self.table.append(words.into_iter())
    }

    /// Size of the table.
    pub(crate) fn table_bytes(&self) -> usize {
        size_of_val(&self.table.words[..])
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
        // SAFETY: whoever made the words answers for what they say; the length is the buffer's.
        let device = |words: &DeviceWords| unsafe {
            BufferArg::from_raw_parts(words.handle.clone(), words.capacity())
        };
        let scales = |of: fn(&CacheScales) -> &Tensor<2>| {
            // SAFETY: the length is the buffer's own; the view was checked against it.
            let bind = |scales| unsafe { buffer(of(scales), 1) };
            self.device.scales.as_ref().map(bind)
        };
        let lengths = self.device.lengths.as_ref().map(device);
        let pages = self.device.pages.as_ref().map(device);
        LogitTensorsLaunch::new(
            mask.into(),
            bias.into(),
            table.into(),
            lengths.into(),
            pages.into(),
            scales(|scales| &scales.k).into(),
            scales(|scales| &scales.v).into(),
        )
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
        let bottom_right = self.alignment == Alignment::BottomRight;
        LogitScalarsLaunch::new(
            f32::NEG_INFINITY,
            self.scale,
            self.softcap,
            self.left + (fault == Some(Fault::BandLeftOffByOne)) as i32,
            self.right + (fault == Some(Fault::BandRightOffByOne)) as i32,
            (bottom_right != (fault == Some(Fault::WrongAlignment))) as i32,
            strided(mask.0, mask.1),
            mask.0[3],
            strided(bias.0, bias.1),
            bias.0[3],
            self.splits.splits as u32,
            self.splits.part as u32,
        )
    }

    pub(crate) fn offsets(&self) -> TableOffsetsLaunch {
        let t = &self.table;
        let scales = |of: fn(&CacheScales) -> &Tensor<2>| match &self.device.scales {
            Some(scales) => [
                of(scales).offset,
                of(scales).strides[0],
                of(scales).strides[1],
            ],
            None => [0; 3],
        };
        let (mut k, mut v) = (scales(|s| &s.k), scales(|s| &s.v));
        if self.features.codes == Some(ScaledBy::Head) {
            (k[1], v[1]) = (0, 0);
        }
        TableOffsetsLaunch::new(
            t.len_q, t.len_kv, t.first_q, t.first_kv, t.doc_q, t.doc_kv, t.slopes, t.tiles,
            t.sinks, t.pages, t.page_row, k[0], k[1], k[2], v[0], v[1], v[2],
        )
    }
}

/// The sequences of the problem: packed ones, or one for every batch entry.
fn sequences(
    dims: &AttendDims,
    options: &AttendOptions<'_>,
) -> Result<Vec<Sequence>, InvalidProblem> {
    let lengths = [
        checked_lengths("lengths_q", options.lengths_q, dims.b, dims.s_q)?,
        checked_lengths("lengths_kv", options.lengths_kv, dims.b, dims.s_kv)?,
    ];
    let Some(cumulative) = options.cu_seqlens else {
        let of = |batch: usize| Sequence {
            first_q: 0,
            len_q: lengths[0].map_or(dims.s_q, |l| l[batch]),
            rows_q: dims.s_q,
            first_kv: 0,
            len_kv: lengths[1].map_or(dims.s_kv, |l| l[batch]),
        };
        return Ok((0..dims.b).map(of).collect());
    };
    for (with, present) in [
        ("lengths_q", options.lengths_q.is_some()),
        ("lengths_kv", options.lengths_kv.is_some()),
        ("documents", options.documents.is_some()),
        ("mask", options.mask.is_some()),
        ("bias", options.bias.is_some()),
    ] {
        if present {
            let option = "cu_seqlens";
            return Err(InvalidProblem::Conflict { option, with });
        }
    }
    if dims.b != 1 {
        return Err(InvalidProblem::Shape {
            tensor: "q",
            axis: "b",
            found: dims.b,
            expected: 1,
        });
    }
    Sequence::packed(cumulative, (dims.s_q, dims.s_kv))
}

fn checked_lengths<'a>(
    name: &'static str,
    lengths: Option<&'a [usize]>,
    b: usize,
    limit: usize,
) -> Result<Option<&'a [usize]>, InvalidProblem> {
    let Some(table) = lengths else {
        return Ok(None);
    };
    expect_entries(name, table.len(), b)?;
    if let Some((index, &value)) = table.iter().enumerate().find(|&(_, &n)| n > limit) {
        return Err(InvalidProblem::Entry {
            name,
            index,
            value,
            limit,
        });
    }
    Ok(lengths)
}

impl Table {
    fn build(
        dims: &AttendDims,
        options: &AttendOptions<'_>,
        sequences: &[Sequence],
    ) -> Result<Self, InvalidProblem> {
        let mut table = Self::default();
        let varlen = options.cu_seqlens.is_some();
        if varlen || options.lengths_q.is_some() || options.lengths_kv.is_some() {
            table.len_q = table.append(sequences.iter().map(|s| s.len_q as u32));
            table.len_kv = table.append(sequences.iter().map(|s| s.len_kv as u32));
        }
        if varlen {
            table.first_q = table.append(sequences.iter().map(|s| s.first_q as u32));
            let first_kv = |s: &Sequence| match options.policy.fault {
                Some(Fault::KeysWhereQueriesStand) => s.first_q as u32,
                _ => s.first_kv as u32,
            };
            table.first_kv = table.append(sequences.iter().map(first_kv));
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
        if let Some(sinks) = options.sinks {
            expect_entries("sinks", sinks.len(), dims.h_q)?;
            if let Some(&value) = sinks.iter().find(|s| !s.is_finite()) {
                return Err(InvalidProblem::NotFinite {
                    name: "sinks",
                    value,
                });
            }
            table.sinks = table.append(sinks.iter().map(|s| s.to_bits()));
        }
        Ok(table)
    }

    fn append(&mut self, words: impl Iterator<Item = u32>) -> usize {
        let at = self.words.len();
        self.words.extend(words);
        at
    }
}
