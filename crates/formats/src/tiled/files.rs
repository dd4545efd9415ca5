//! Saved and loaded as the tensors of a safetensors file.

use super::{GroupZeros, QuantizedLinear, VERSION};
use crate::checkpoint::{Checkpoint, TensorView};
use crate::error::FormatError;
use crate::float_weights::{CodeType, GroupScales};
use crate::int_weights::QuantShape;
use crate::write::TensorData;
use safetensors::Dtype;

/// What `tiles` holds: version, bits, k, n, group, groups of the source, stored rows and group, type of
/// codes (integers, E2M1, E4M3, NF4) and of scales (f16, E4M3, E8M0).
const FIELDS: usize = 10;
/// Oldest version that is read.
const OLDEST: i64 = 2;
/// First version with minima.
const MINIMA: i64 = 3;

impl QuantizedLinear {
    /// The oldest version that says all.
    fn version(&self) -> i64 {
        match self.zeros {
            Some(GroupZeros::Minima(_)) => MINIMA,
            _ => OLDEST,
        }
    }

    /// The tensors of the linear `prefix`, as [`QuantizedLinear::load`] reads them: `tiles` (i64
    /// \[version, bits, k, n, group, groups, rows, stored group, codes, scales\]), `words`, `scales`,
    /// `divisor`, `sources` and, where there are any, `zeros` (u8 zero points or f16 minima), `gather`, `g_idx`.
    ///
    /// # Errors
    /// Those of [`QuantizedLinear::validate`].
    pub fn tensors(&self, prefix: &str) -> Result<Vec<(String, TensorData)>, FormatError> {
        self.validate()?;
        let QuantShape {
            k,
            n,
            bits,
            group,
            groups,
        } = self.shape;
        let codes = CodeType::ALL.iter().position(|&t| t == self.code_type);
        let (scale_type, places) = (
            scale_number(&self.scales),
            [self.sources.len(), self.columns()],
        );
        let fields: Vec<i64> = [bits as usize, k, n, group, groups, self.rows, self.group]
            .into_iter()
            .chain([codes.unwrap_or_default(), scale_type])
            .map(|size| size as i64)
            .collect();
        let scales = match &self.scales {
            GroupScales::F16(scales) => TensorData::new(&places, scales)?,
            GroupScales::E4M3(scales) | GroupScales::E8M0(scales) => {
                TensorData::new(&places, scales)?
            }
        };
        let tiles = [&[self.version()][..], &fields].concat();
        let words = |words: &[u32]| {
            let words: Vec<i32> = words.iter().map(|&word| word as i32).collect();
            TensorData::new(&[words.len()], &words)
        };
        let mut tensors = vec![
            ("tiles", TensorData::new(&[FIELDS], &tiles)?),
            ("words", words(&self.words)?),
            ("scales", scales),
            ("divisor", TensorData::new(&[1], &[self.divisor])?),
            ("sources", words(&self.sources)?),
        ];
        if let Some(zeros) = &self.zeros {
            let zeros = match zeros {
                GroupZeros::Points(points) => TensorData::new(&places, points)?,
                GroupZeros::Minima(minima) => TensorData::new(&places, minima)?,
            };
            tensors.push(("zeros", zeros));
        }
        for (name, table) in [("gather", &self.gather), ("g_idx", &self.g_idx)] {
            if let Some(table) = table {
                tensors.push((name, words(table)?));
            }
        }
        let named = |(name, tensor)| (format!("{prefix}.{name}"), tensor);
        Ok(tensors.into_iter().map(named).collect())
    }

    /// Loads the linear `prefix`.
    ///
    /// # Errors
    /// [`FormatError::MissingTensor`] and [`FormatError::WrongDtype`] for the tensors,
    /// [`FormatError::Unsupported`] for another version, [`FormatError::OutOfRange`] for a negative
    /// size, those of [`QuantizedLinear::validate`].
    pub fn load(checkpoint: &Checkpoint, prefix: &str) -> Result<Self, FormatError> {
        let named = |name: &str| format!("{prefix}.{name}");
        let tiles = checkpoint.tensor(&named("tiles"))?.with_shape(&[FIELDS])?;
        let fields = tiles.to_vec::<i64>()?;
        if !(OLDEST..=VERSION).contains(&fields[0]) {
            return Err(FormatError::unsupported(
                "QuantizedLinear",
                "version",
                fields[0],
                "versions 2 and 3",
            ));
        }
        let unknown = |index: usize, value: i64, limit: u64| FormatError::OutOfRange {
            tensor: named("tiles"),
            index,
            value,
            limit,
        };
        let size = |index: usize| {
            usize::try_from(fields[index])
                .map_err(|_| unknown(index, fields[index], usize::MAX as u64))
        };
        let shape = QuantShape {
            bits: u32::try_from(size(1)?).unwrap_or(u32::MAX),
            k: size(2)?,
            n: size(3)?,
            group: size(4)?,
            groups: size(5)?,
        };
        let words = |name: &str| -> Result<Option<Vec<u32>>, FormatError> {
            let view = checkpoint.optional(&named(name))?;
            view.map(|view| view.to_words()).transpose()
        };
        let needed = |name: &str| checkpoint.tensor(&named(name))?.to_words();
        let scales = checkpoint.tensor(&named("scales"))?;
        let divisor = checkpoint.tensor(&named("divisor"))?.with_shape(&[1])?;
        let zeros = checkpoint.optional(&named("zeros"))?;
        let linear = Self {
            shape,
            rows: size(6)?,
            group: size(7)?,
            words: needed("words")?,
            code_type: *CodeType::ALL
                .get(size(8)?)
                .ok_or_else(|| unknown(8, fields[8], 4))?,
            scales: match size(9)? {
                0 => GroupScales::F16(scales.to_vec()?),
                1 => GroupScales::E4M3(scales.to_vec()?),
                2 => GroupScales::E8M0(scales.to_vec()?),
                _ => return Err(unknown(9, fields[9], 3)),
            },
            divisor: divisor.to_vec::<f32>()?[0],
            zeros: zeros.map(|view| load_zeros(view, fields[0])).transpose()?,
            gather: words("gather")?,
            sources: needed("sources")?,
            g_idx: words("g_idx")?,
        };
        linear.validate()?;
        Ok(linear)
    }
}

/// Zero points, from version 3 on also minima.
fn load_zeros(view: TensorView<'_>, version: i64) -> Result<GroupZeros, FormatError> {
    match view.dtype {
        Dtype::F16 if version >= MINIMA => view.to_vec().map(GroupZeros::Minima),
        _ => view.to_vec().map(GroupZeros::Points),
    }
}

fn scale_number(scales: &GroupScales) -> usize {
    match scales {
        GroupScales::F16(_) => 0,
        GroupScales::E4M3(_) => 1,
        GroupScales::E8M0(_) => 2,
    }
}
