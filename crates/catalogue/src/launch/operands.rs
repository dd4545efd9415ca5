//! Tensors as operands of block-scaled products, and attention over them.

use cubecl::prelude::CubeElement;
use flashcube::{
    AttendOptions, DType, Error, OperandOptions, Policy, Tensor, attend_operands, quantize_operand,
};

use super::{HookArrays, Launched, Run, erase};
use crate::problem::{Operands, QuantizeSizes};
use crate::verdict::Outputs;

impl Run<'_> {
    pub(super) fn operands(&self, sizes: &Operands, policy: Policy) -> Result<Launched, Error> {
        let attend = &sizes.attend;
        let rows = OperandOptions::rows(sizes.scores);
        let columns = OperandOptions {
            lengths: attend.lengths_kv.as_deref(),
            cu_seqlens: attend.cu_seqlens.as_ref().map(|(_, kv)| &kv[..]),
            ..OperandOptions::columns(sizes.values)
        };
        let quantize = |name: &str, options: &OperandOptions<'_>| {
            let x: Tensor<4> = self.tensor(name);
            quantize_operand(self.client, &x, options)
        };
        // Every sequence starts a tile of scales, and heads that are packed alternate in tiles.
        let cu_seqlens = attend.cu_seqlens.as_ref();
        let of_q = OperandOptions {
            cu_seqlens: cu_seqlens.map(|(q, _)| &q[..]),
            pack: match policy.pack {
                Some(true) => attend.h_q / attend.h_kv,
                _ => 1,
            },
            ..rows
        };
        let of_k = OperandOptions {
            cu_seqlens: cu_seqlens.map(|(_, kv)| &kv[..]),
            ..rows
        };
        let (q, k) = (quantize("q", &of_q)?, quantize("k", &of_k)?);
        let v = quantize("v", &columns)?;
        let places = [
            self.place(0, self.problem.dtype, 2),
            self.place(1, DType::F32, 2),
        ];
        let hooks = HookArrays::of(self, attend);
        let options = AttendOptions {
            out: places[0].tensor(),
            lse: places[1].tensor(),
            ..hooks.options(attend, policy)
        };
        let operands = [&q, &k, &v];
        let attended = attend_operands(self.client, operands, self.problem.dtype, &options)?;
        let tensors = [erase(&attended.out), erase(&attended.lse)];
        let mut launched = self.collect(&places, &tensors)?;
        launched.blueprint = attended.blueprint.map(|b| b.to_string());
        launched.attend = attended.blueprint;
        Ok(launched)
    }

    pub(super) fn quantize(&self, sizes: &QuantizeSizes) -> Result<Launched, Error> {
        let options = OperandOptions {
            format: sizes.format,
            axis: sizes.axis,
            lengths: sizes.lengths.as_deref(),
            cu_seqlens: sizes.cu_seqlens.as_deref(),
            pack: sizes.pack,
        };
        let x: Tensor<4> = self.tensor("x");
        let operand = quantize_operand(self.client, &x, &options)?;
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        if !operand.is_empty() {
            let bytes = self.read(&operand.words)?;
            let words: Vec<u32> = bytes
                .chunks_exact(4)
                .map(|b| u32::from_bytes(b)[0])
                .collect();
            let bits = operand.format.bits();
            let count: usize = sizes.codes().iter().product();
            let code = |at: usize| words[at * bits / 32] >> (at * bits % 32) & ((1 << bits) - 1);
            codes = (0..count).map(|at| code(at) as f32).collect();
            let first = 4 * operand.scales_at();
            let tiles = &bytes[first..4 * operand.len()];
            scales = tiles.iter().map(|&byte| f32::from(byte)).collect();
        }
        Ok(Launched {
            outputs: Outputs::default()
                .with("codes", codes)
                .with("scales", scales),
            blueprint: operand.blueprint.map(|b| b.to_string()),
            attend: None,
            disturbed: None,
        })
    }
}
