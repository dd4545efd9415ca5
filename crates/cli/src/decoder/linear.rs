use std::fmt;

use cubecl::prelude::Client;
use flashcube::{
    DType, LinearWeights, MatmulOptions, ScaleType, Tensor, WeightCodes, ZeroType,
    matmul_quantized, scale_range,
};
use flashcube_formats::{
    CodeType, FormatError, GroupScales, GroupZeros, QuantizedLinear, input_divisor,
};
use flashcube_models::{Linear, ModelError, QuantizedCheckpoint, Weights};

use crate::elements::{download, upload};

/// A linear whose packed weight lies on a device: y = (x / divisor) W + bias, codes multiplied as they
/// are.
pub(crate) struct PackedOnDevice {
    client: Client,
    weights: LinearWeights,
    /// `[n]`
    bias: Option<Tensor<1>>,
    /// `[k]`, what AWQ left beside the weight.
    divisor: Option<Vec<f32>>,
    /// Type of x and y.
    dtype: DType,
}

impl fmt::Debug for PackedOnDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedOnDevice")
            .field("weights", &self.weights)
            .field("dtype", &self.dtype)
            .finish_non_exhaustive()
    }
}

impl PackedOnDevice {
    /// The linear `prefix` [k, n] of a checkpoint.
    ///
    /// # Errors
    /// [`ModelError::Format`] for a linear that cannot be read or has other sizes.
    pub(crate) fn load(
        client: &Client,
        checkpoint: &QuantizedCheckpoint,
        prefix: &str,
        [k, n]: [usize; 2],
        dtype: DType,
    ) -> Result<Self, ModelError> {
        let packed = checkpoint.tiled(prefix)?;
        if (packed.shape.k, packed.shape.n) != (k, n) {
            return Err(ModelError::Format(FormatError::WrongShape {
                tensor: format!("{prefix}.weight"),
                found: vec![packed.shape.n, packed.shape.k],
                expected: vec![n, k],
            }));
        }
        let bias = format!("{prefix}.bias");
        let bias = Weights::shape(checkpoint, &bias)
            .map(|_| checkpoint.tensor(&bias, &[n]))
            .transpose()?;
        Ok(Self {
            client: client.clone(),
            weights: on_device(client, &packed),
            bias: bias.map(|bias| upload(client, &bias, [n], dtype)),
            divisor: input_divisor(checkpoint.checkpoint(), prefix, k)?,
            dtype,
        })
    }
}

/// Copies packed weights to a device.
fn on_device(client: &Client, linear: &QuantizedLinear) -> LinearWeights {
    let words = |words: &[u32]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        client.create_from_slice(&bytes)
    };
    LinearWeights {
        bits: linear.shape.bits,
        codes: match linear.code_type {
            CodeType::Int => WeightCodes::Int,
            CodeType::E2M1 => WeightCodes::E2M1,
            CodeType::E4M3 => WeightCodes::E4M3,
            CodeType::Nf4 => WeightCodes::Nf4,
        },
        scale_type: match linear.scales {
            GroupScales::F16(_) => ScaleType::F16,
            GroupScales::E4M3(_) => ScaleType::E4M3,
            GroupScales::E8M0(_) => ScaleType::E8M0,
        },
        scale_range: scale_range(linear.scale_values()),
        factor: 1.0 / linear.divisor,
        k: linear.shape.k,
        n: linear.shape.n,
        rows: linear.rows,
        group: linear.group,
        words: words(&linear.words),
        scales: client.create_from_slice(&linear.scales.to_bytes()),
        zeros: linear
            .zeros
            .as_ref()
            .map(|zeros| client.create_from_slice(&zeros.to_bytes())),
        zero_type: match linear.zeros {
            Some(GroupZeros::Minima(_)) => ZeroType::Minimum,
            _ => ZeroType::Point,
        },
        gather: linear.gather.as_ref().map(|gather| words(gather)),
    }
}

impl Linear for PackedOnDevice {
    fn inputs(&self) -> usize {
        self.weights.k
    }

    fn outputs(&self) -> usize {
        self.weights.n
    }

    fn apply(&self, x: &[f32]) -> Result<Vec<f32>, ModelError> {
        let k = self.weights.k;
        let divided: Vec<f32>;
        let x = match &self.divisor {
            None => x,
            Some(divisor) => {
                let by = divisor.iter().cycle();
                divided = x.iter().zip(by).map(|(x, by)| x / by).collect();
                &divided
            }
        };
        let rows = x.len().checked_div(k).unwrap_or(0);
        let device = |detail: String| ModelError::Device {
            what: "product",
            detail,
        };
        let x = upload(&self.client, x, [rows, k], self.dtype);
        let options = MatmulOptions {
            bias: self.bias.clone(),
            ..MatmulOptions::default()
        };
        let y = matmul_quantized(&self.client, &x, &self.weights, &options);
        download(&self.client, &y.map_err(|e| device(e.to_string()))?.out).map_err(device)
    }
}

/// A linear in floats that holds its input and output as a device does: what the types alone cost.
#[derive(Debug)]
pub(crate) struct Rounded {
    pub(crate) linear: Box<dyn Linear>,
    pub(crate) dtype: DType,
}

impl Linear for Rounded {
    fn inputs(&self) -> usize {
        self.linear.inputs()
    }

    fn outputs(&self) -> usize {
        self.linear.outputs()
    }

    fn apply(&self, x: &[f32]) -> Result<Vec<f32>, ModelError> {
        let y = self
            .linear
            .apply(&crate::elements::rounded(self.dtype, x))?;
        Ok(crate::elements::rounded(self.dtype, &y))
    }
}
