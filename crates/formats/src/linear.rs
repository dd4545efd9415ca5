//! One linear layer of a checkpoint: from its tensors, found by prefix, to a packed weight and
//! back.

use safetensors::Dtype;

use crate::checkpoint::{Checkpoint, TensorView};
use crate::config::{Packing, QuantConfig};
use crate::error::{FormatError, product};
use crate::gptq::{self, GptqVersion};
use crate::int_weights::QuantShape;
use crate::nvfp4::Nvfp4Linear;
use crate::packed::{Format, Layout, PackedLinear};
use crate::write::TensorData;

/// Tensor names after the prefix: weights, zero points, scales, group indices.
struct Names {
    weights: &'static str,
    zeros: &'static str,
    scales: &'static str,
    g_idx: &'static str,
}

fn names(format: Format) -> Names {
    match format {
        Format::Marlin => Names {
            weights: "B",
            zeros: "",
            scales: "s",
            g_idx: "",
        },
        Format::CompressedTensors => Names {
            weights: "weight_packed",
            zeros: "weight_zero_point",
            scales: "weight_scale",
            g_idx: "weight_g_idx",
        },
        _ => Names {
            weights: "qweight",
            zeros: "qzeros",
            scales: "scales",
            g_idx: "g_idx",
        },
    }
}

impl PackedLinear {
    /// Loads the linear `prefix` (`model.layers.0.self_attn.q_proj`) of an integer-quantized
    /// checkpoint.
    ///
    /// A g_idx that only restates row / group is dropped. Scales in bf16 or f32 are taken where f16
    /// holds them exactly.
    ///
    /// # Errors
    /// [`FormatError::MissingTensor`], [`FormatError::WrongDtype`] and [`FormatError::WrongShape`]
    /// for the tensors, [`FormatError::ZeroPointVersion`] when symmetric GPTQ zero points belong to
    /// the version that the config does not declare, [`FormatError::Unsupported`] when the config
    /// is NVFP4, those of [`PackedLinear::validate`].
    pub fn load(
        checkpoint: &Checkpoint,
        prefix: &str,
        config: &QuantConfig,
    ) -> Result<Self, FormatError> {
        let Packing::Int(format) = config.packing else {
            return Err(FormatError::unsupported(
                "PackedLinear",
                "packing",
                "small floats",
                "integers: load NVFP4 as Nvfp4Linear, tiles as QuantizedLinear",
            ));
        };
        let names = names(format);
        let named = |suffix: &str| format!("{prefix}.{suffix}");
        let weights = checkpoint.tensor(&named(names.weights))?;
        let scales = checkpoint.tensor(&named(names.scales))?;
        let g_idx = match format {
            Format::GptqV1(_) | Format::GptqV2 | Format::CompressedTensors => {
                checkpoint.optional(&named(names.g_idx))?
            }
            _ => None,
        };
        // Some tools write a g_idx of no elements for layers without act-order.
        let g_idx = g_idx.filter(|view| !view.bytes.is_empty());
        let (k, n) = sizes(checkpoint, prefix, format, config.bits, weights, g_idx)?;
        let mut shape = QuantShape::new(k, n, config.bits, config.group_size)?;
        let g_idx = g_idx
            .map(|view| group_indices(view, &shape))
            .transpose()?
            .flatten();
        if g_idx.is_some() {
            // A shard of an act-order layer keeps the scales of all groups: more than its rows
            // fill, never fewer.
            let stored = matrix(scales)?[usize::from(format == Format::CompressedTensors)];
            shape.groups = shape.groups.max(stored);
        }
        let layout = format.layout(&shape)?;
        let packed = Self {
            format,
            shape,
            weights: weights.with_shape(&layout.weights)?.to_words()?,
            scales: scales.with_shape(&layout.scales)?.to_f16_exact()?,
            zeros: load_zeros(checkpoint, &named(names.zeros), &layout, config)?,
            g_idx,
        };
        packed.validate()?;
        packed.check_declared(&named(names.zeros), config)?;
        Ok(packed)
    }

    /// Refuses symmetric zero points of the other GPTQ version. An asymmetric layer may hold any.
    fn check_declared(&self, tensor: &str, config: &QuantConfig) -> Result<(), FormatError> {
        let declared = match self.format {
            Format::GptqV1(_) => GptqVersion::V1,
            Format::GptqV2 => GptqVersion::V2,
            _ => return Ok(()),
        };
        match &self.zeros {
            Some(zeros) if config.sym != Some(false) => {
                gptq::check_version(tensor, zeros, &self.shape, declared)
            }
            _ => Ok(()),
        }
    }

    /// The tensors of the linear `prefix`, named and shaped as [`PackedLinear::load`] and the
    /// format's own readers expect them; GPTQ always gets a g_idx, compressed-tensors its
    /// weight_shape.
    ///
    /// # Errors
    /// Those of [`PackedLinear::validate`].
    pub fn tensors(&self, prefix: &str) -> Result<Vec<(String, TensorData)>, FormatError> {
        self.validate()?;
        let QuantShape { k, n, group, .. } = self.shape;
        let (layout, names) = (self.format.layout(&self.shape)?, names(self.format));
        let words = |shape: &[usize], words: &[u32]| {
            TensorData::new(
                shape,
                &words.iter().map(|&word| word as i32).collect::<Vec<_>>(),
            )
        };
        let mut tensors = vec![
            (names.weights, words(&layout.weights, &self.weights)?),
            (names.scales, TensorData::new(&layout.scales, &self.scales)?),
        ];
        if let (Some(shape), Some(zeros)) = (layout.zeros, &self.zeros) {
            tensors.push((names.zeros, words(&shape, zeros)?));
        }
        let identity = || (0..k).map(|row| (row / group) as u32).collect();
        let g_idx: Option<Vec<u32>> = match self.format {
            Format::GptqV1(_) | Format::GptqV2 => Some(self.g_idx.clone().unwrap_or_else(identity)),
            _ => self.g_idx.clone(),
        };
        if let Some(g_idx) = g_idx {
            tensors.push((names.g_idx, words(&[k], &g_idx)?));
        }
        if self.format == Format::CompressedTensors {
            tensors.push((
                "weight_shape",
                TensorData::new(&[2], &[n as i64, k as i64])?,
            ));
        }
        Ok(tensors
            .into_iter()
            .map(|(name, tensor)| (format!("{prefix}.{name}"), tensor))
            .collect())
    }
}

/// The zero-point words, where the format has them; compressed-tensors leaves them out of symmetric
/// layers.
fn load_zeros(
    checkpoint: &Checkpoint,
    name: &str,
    layout: &Layout,
    config: &QuantConfig,
) -> Result<Option<Vec<u32>>, FormatError> {
    let Some(shape) = layout.zeros else {
        return Ok(None);
    };
    let optional =
        config.packing == Packing::Int(Format::CompressedTensors) && config.sym != Some(false);
    if optional && !checkpoint.contains(name) {
        return Ok(None);
    }
    checkpoint
        .tensor(name)?
        .with_shape(&shape)?
        .to_words()
        .map(Some)
}

/// (k, n) from the tensor that knows them. GPTQ words may end in unused fields, so that only g_idx
/// tells k exactly.
fn sizes(
    checkpoint: &Checkpoint,
    prefix: &str,
    format: Format,
    bits: u32,
    weights: TensorView<'_>,
    g_idx: Option<TensorView<'_>>,
) -> Result<(usize, usize), FormatError> {
    let [rows, columns] = matrix(weights)?;
    let too_large = || FormatError::TooLarge {
        what: weights.name.to_owned(),
        sizes: vec![rows, columns, 32],
    };
    let times = |size: usize, factor: usize| size.checked_mul(factor).ok_or_else(too_large);
    Ok(match format {
        Format::GptqV1(_) | Format::GptqV2 => match g_idx {
            Some(view) => (product("g_idx", view.shape)?, columns),
            None => (times(rows, 32)? / bits as usize, columns),
        },
        Format::AwqGemm => (rows, times(columns, 8)?),
        Format::AwqGemv => (times(columns, 8)?, rows),
        Format::Marlin => (times(rows, 16)?, columns / 2),
        Format::CompressedTensors => {
            let view = checkpoint
                .tensor(&format!("{prefix}.weight_shape"))?
                .with_shape(&[2])?;
            let stored = match view.dtype {
                Dtype::I32 => view.to_vec::<i32>()?.into_iter().map(i64::from).collect(),
                _ => view.to_vec::<i64>()?,
            };
            let size = |index: usize| {
                usize::try_from(stored[index]).map_err(|_| FormatError::OutOfRange {
                    tensor: view.name.to_owned(),
                    index,
                    value: stored[index],
                    limit: usize::MAX as u64,
                })
            };
            (size(1)?, size(0)?)
        }
    })
}

fn matrix(view: TensorView<'_>) -> Result<[usize; 2], FormatError> {
    view.shape.try_into().map_err(|_| FormatError::WrongShape {
        tensor: view.name.to_owned(),
        found: view.shape.to_vec(),
        expected: vec![0, 0],
    })
}

/// g_idx as group numbers; None where it says nothing: row / group for every row, or
/// compressed-tensors' -1.
fn group_indices(
    view: TensorView<'_>,
    shape: &QuantShape,
) -> Result<Option<Vec<u32>>, FormatError> {
    let stored = view.with_shape(&[shape.k])?.to_vec::<i32>()?;
    let plain = |(row, &group): (usize, &i32)| usize::try_from(group) == Ok(row / shape.group);
    if stored.iter().enumerate().all(plain) || stored.iter().all(|&group| group == -1) {
        return Ok(None);
    }
    let convert = |(index, &group): (usize, &i32)| {
        u32::try_from(group).map_err(|_| FormatError::OutOfRange {
            tensor: view.name.to_owned(),
            index,
            value: group.into(),
            limit: shape.groups as u64,
        })
    };
    stored
        .iter()
        .enumerate()
        .map(convert)
        .collect::<Result<_, _>>()
        .map(Some)
}

impl Nvfp4Linear {
    /// Loads the linear `prefix` of an NVFP4 checkpoint.
    ///
    /// # Errors
    /// [`FormatError::MissingTensor`], [`FormatError::WrongDtype`] and [`FormatError::WrongShape`]
    /// for the tensors, those of [`Nvfp4Linear::unpack`] for their values.
    pub fn load(checkpoint: &Checkpoint, prefix: &str) -> Result<Self, FormatError> {
        let view = |suffix: &str| checkpoint.tensor(&format!("{prefix}.{suffix}"));
        let packed = view("weight_packed")?;
        let [n, half] = matrix(packed)?;
        let k = product("weight_packed", &[half, 2])?;
        let scales = view("weight_scale")?.with_shape(&[n, k.div_ceil(16)])?;
        if scales.dtype != Dtype::F8_E4M3 {
            return Err(scales.wrong_dtype(&[Dtype::F8_E4M3]));
        }
        let factor = view("weight_global_scale")?.with_shape(&[1])?.to_f32()?;
        let linear = Self {
            k,
            n,
            packed: packed.to_vec()?,
            scales: scales.bytes.to_vec(),
            encode_factor: factor[0],
        };
        linear.check()?;
        Ok(linear)
    }

    /// The tensors of the linear `prefix`, as [`Nvfp4Linear::load`] reads them.
    pub fn tensors(&self, prefix: &str) -> Result<Vec<(String, TensorData)>, FormatError> {
        self.check()?;
        let scales = TensorData::from_bytes(
            Dtype::F8_E4M3,
            &[self.n, self.k.div_ceil(16)],
            self.scales.clone(),
        )?;
        Ok(vec![
            (
                format!("{prefix}.weight_packed"),
                TensorData::new(&[self.n, self.k / 2], &self.packed)?,
            ),
            (format!("{prefix}.weight_scale"), scales),
            (
                format!("{prefix}.weight_global_scale"),
                TensorData::new(&[1], &[self.encode_factor])?,
            ),
        ])
    }
}
