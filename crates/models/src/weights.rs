//! Where a model's tensors come from: float checkpoints, quantized ones, GGUF files, and what a
//! quantizer lays over them.

use std::collections::{BTreeSet, HashMap};

use flashcube_formats::{
    Checkpoint, FloatWeights, FormatError, Nvfp4Linear, PackedLinear, Packing, QuantConfig,
    QuantizedLinear, input_divisor,
};

use crate::ModelError;

/// Named f32 tensors, under the names of the model's own checkpoints. A linear's weight is
/// `{prefix}.weight` [out, in], whatever form the file holds it in.
pub trait Weights: Send + Sync {
    /// A tensor of exactly this shape.
    ///
    /// # Errors
    /// [`ModelError::Format`] naming the tensor that is missing or of another shape or type.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError>;

    /// The shape of a tensor, None where there is none of this name.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;

    /// Every name, sorted.
    fn names(&self) -> Vec<String>;
}

impl Weights for Checkpoint {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        Ok(Checkpoint::tensor(self, name)?
            .with_shape(shape)?
            .to_f32()?)
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let view = self.optional(name).ok().flatten()?;
        Some(view.shape.to_vec())
    }

    fn names(&self) -> Vec<String> {
        Checkpoint::names(self).map(str::to_owned).collect()
    }
}

/// A checkpoint with quantized linears, which are dequantized as they are read.
#[derive(Debug)]
pub struct QuantizedCheckpoint {
    checkpoint: Checkpoint,
    config: QuantConfig,
}

/// A tensor that stands for a packed linear: every packing has one of them.
const MARKERS: [&str; 4] = [".qweight", ".weight_packed", ".B", ".tiles"];

impl QuantizedCheckpoint {
    /// A checkpoint and what its config says.
    pub fn new(checkpoint: Checkpoint, config: QuantConfig) -> Self {
        Self { checkpoint, config }
    }

    /// The tensors as they are stored.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// What the checkpoint says about itself.
    pub fn config(&self) -> &QuantConfig {
        &self.config
    }

    /// The prefixes of the quantized linears, sorted.
    pub fn linears(&self) -> BTreeSet<String> {
        let prefix = |name: &str| {
            let marker = MARKERS.iter().find_map(|marker| name.strip_suffix(marker));
            marker.map(str::to_owned)
        };
        self.checkpoint.names().filter_map(prefix).collect()
    }

    /// One quantized linear, where it is an integer one: the form that kernels take.
    ///
    /// # Errors
    /// Those of [`PackedLinear::load`].
    pub fn packed(&self, prefix: &str) -> Result<PackedLinear, FormatError> {
        PackedLinear::load(&self.checkpoint, prefix, &self.config)
    }

    /// One quantized linear, of integers or small floats, in the order in which kernels read it.
    ///
    /// # Errors
    /// Those of [`PackedLinear::load`], [`Nvfp4Linear::load`] and [`QuantizedLinear::new`].
    pub fn tiled(&self, prefix: &str) -> Result<QuantizedLinear, FormatError> {
        match self.config.packing {
            Packing::Int(_) => QuantizedLinear::from_packed(&self.packed(prefix)?),
            Packing::Tiles => QuantizedLinear::load(&self.checkpoint, prefix),
            Packing::Nvfp4 => {
                let weights = Nvfp4Linear::load(&self.checkpoint, prefix)?.unpack()?;
                QuantizedLinear::from_floats(&FloatWeights::nvfp4(&weights)?)
            }
        }
    }

    /// Whether `{prefix}.weight` is a quantized linear.
    pub fn is_packed(&self, prefix: &str) -> bool {
        let named = |marker: &&str| self.checkpoint.contains(&format!("{prefix}{marker}"));
        MARKERS.iter().any(named)
    }

    /// k, n and W [k, n] of a quantized linear, its input's divisor taken in.
    fn dequantized(&self, prefix: &str) -> Result<(usize, usize, Vec<f32>), FormatError> {
        let (k, n, mut weight) = match self.config.packing {
            Packing::Nvfp4 => {
                let linear = Nvfp4Linear::load(&self.checkpoint, prefix)?;
                (linear.k, linear.n, linear.unpack()?.dequantize())
            }
            Packing::Tiles => {
                let linear = QuantizedLinear::load(&self.checkpoint, prefix)?;
                let weights = linear.unpack_floats()?;
                (weights.shape.k, weights.shape.n, weights.dequantize())
            }
            Packing::Int(_) => {
                let packed = self.packed(prefix)?;
                (
                    packed.shape.k,
                    packed.shape.n,
                    packed.unpack()?.dequantize(),
                )
            }
        };
        if let Some(divisor) = input_divisor(&self.checkpoint, prefix, k)? {
            for (row, divisor) in weight.chunks_exact_mut(n.max(1)).zip(divisor) {
                row.iter_mut().for_each(|w| *w /= divisor);
            }
        }
        Ok((k, n, weight))
    }
}

impl Weights for QuantizedCheckpoint {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let prefix = name
            .strip_suffix(".weight")
            .filter(|prefix| self.is_packed(prefix));
        let Some(prefix) = prefix else {
            return Weights::tensor(&self.checkpoint, name, shape);
        };
        let (k, n, weight) = self.dequantized(prefix)?;
        check_shape(name, &[n, k], shape)?;
        // [k, n] -> [n, k]
        let column = |n_at| weight.iter().skip(n_at).step_by(n).copied();
        Ok((0..n).flat_map(column).collect())
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match name.strip_suffix(".weight") {
            Some(prefix) if self.is_packed(prefix) => {
                let (k, n, _) = self.dequantized(prefix).ok()?;
                Some(vec![n, k])
            }
            _ => Weights::shape(&self.checkpoint, name),
        }
    }

    fn names(&self) -> Vec<String> {
        let linears = self.linears();
        let packed = |name: &str| {
            let prefix = name.rsplit_once('.').map(|(prefix, _)| prefix);
            prefix.is_some_and(|prefix| linears.contains(prefix)) && !name.ends_with(".bias")
        };
        let plain = self
            .checkpoint
            .names()
            .filter(|name| !packed(name))
            .map(str::to_owned);
        let weights = linears.iter().map(|prefix| format!("{prefix}.weight"));
        let all: BTreeSet<String> = plain.chain(weights).collect();
        all.into_iter().collect()
    }
}

/// Some tensors replaced by others of the same shape.
pub struct Overlay<'a> {
    base: &'a dyn Weights,
    changed: HashMap<String, Vec<f32>>,
}

impl<'a> Overlay<'a> {
    /// Nothing replaced yet.
    pub fn new(base: &'a dyn Weights) -> Self {
        Self {
            base,
            changed: HashMap::new(),
        }
    }

    /// Replaces a tensor; another length is refused when it is read.
    pub fn set(&mut self, name: String, values: Vec<f32>) {
        self.changed.insert(name, values);
    }

    /// The names replaced.
    pub fn changed(&self) -> impl Iterator<Item = &str> {
        self.changed.keys().map(String::as_str)
    }
}

impl Weights for Overlay<'_> {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let Some(values) = self.changed.get(name) else {
            return self.base.tensor(name, shape);
        };
        if values.len() != shape.iter().product::<usize>() {
            check_shape(name, &[values.len()], shape)?;
        }
        Ok(values.clone())
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.base.shape(name)
    }

    fn names(&self) -> Vec<String> {
        self.base.names()
    }
}

pub(crate) fn check_shape(
    name: &str,
    found: &[usize],
    expected: &[usize],
) -> Result<(), ModelError> {
    if found == expected {
        return Ok(());
    }
    Err(ModelError::Format(FormatError::WrongShape {
        tensor: name.to_owned(),
        found: found.to_vec(),
        expected: expected.to_vec(),
    }))
}
