//! Single instructions (section 11): products within eps times the magnitudes they sum, moves and conversions exactly.

use flashcube::{CodeFormat, Instruction, MatrixElement, WgmmaOperands};
use flashcube_reference::quant::float::{
    BF16, E2M1, E4M3, E5M2, F16, FloatFormat, Overflow, Round,
};

use super::{TABLE, TINY, U};
use crate::array::Array;
use crate::inputs::Inputs;
use crate::oracle::Expected;
use crate::problem::{Problem, Task};

/// What the operands of a product are like; each is an output of its own.
pub(crate) const PROBES: [&str; 5] = ["normal", "outliers", "cancelling", "subnormal", "swamped"];

/// Trials of each of [`PROBES`], and of a move.
pub(crate) const TRIALS: usize = 8;

/// Outputs by name and shape.
pub(crate) fn instruction_outputs(instruction: Instruction) -> Vec<(&'static str, Vec<usize>)> {
    if let Some((m, n, _)) = instruction.product() {
        let shape = vec![TRIALS, m as usize, n as usize];
        return PROBES.map(|probe| (probe, shape.clone())).to_vec();
    }
    let sizes = instruction.sizes();
    match instruction {
        Instruction::Encode(format) => {
            let trials = encoded(format).len().div_ceil(sizes.a) + TRIALS;
            vec![("codes", vec![trials, sizes.out])]
        }
        Instruction::Decode(format) => {
            vec![("f16", vec![1 << (2 * format.bits()) >> 5, sizes.out])]
        }
        _ => vec![("moved", vec![TRIALS, sizes.out])],
    }
}

/// eps of a product with accumulator: |got - exact| <= eps (sum |a b| + |c|).
///
/// Products of two elements are exact. The unit aligns them and c to the largest, cuts off what lies below its
/// width, and normalises: each of k + 1 addends and the result may lose one unit of that width.
pub(crate) fn instruction_eps(problem: &Problem) -> Option<f64> {
    let Task::Instruction(instruction) = &problem.task else {
        return None;
    };
    let ((_, _, k), element) = (instruction.product()?, instruction.element()?);
    let unit = match element.bits() {
        8 => TABLE.matrix_fp8 * 2f64.powi(-13),
        _ => TABLE.matrix_ulps * 2.0 * U,
    };
    Some(unit * f64::from(k + 2))
}

/// What the instruction should give.
pub(crate) fn instruction(problem: &Problem, form: Instruction, inputs: &Inputs) -> Vec<Expected> {
    let words = |name: &str| inputs.get(name).map(Array::words).unwrap_or_default();
    let exactly = |values: Vec<f64>| {
        let (name, shape) = instruction_outputs(form).remove(0);
        vec![Expected {
            name,
            shape,
            bound: vec![0.0; values.len()],
            exact: values,
        }]
    };
    match form {
        Instruction::Encode(format) => exactly(encode_all(format, words("a"))),
        Instruction::Decode(format) => exactly(decode_all(format, words("a"))),
        Instruction::LoadMatrix { count, transposed } => {
            exactly(moved(count as usize, transposed, words("a")))
        }
        Instruction::Mma { .. } | Instruction::Wgmma { .. } => products(problem, form, inputs),
    }
}

fn products(problem: &Problem, form: Instruction, inputs: &Inputs) -> Vec<Expected> {
    let words = |name: &str| inputs.get(name).map(Array::words).unwrap_or_default();
    let (Some((m, n, k)), Some(element), Some(eps)) =
        (form.product(), form.element(), instruction_eps(problem))
    else {
        return Vec::new();
    };
    let wide = |words: &[u32]| -> Vec<f64> {
        let elements = words.len() * 32 / element.bits() as usize;
        (0..elements).map(|at| number(element, words, at)).collect()
    };
    let (a, b, c) = (wide(words("a")), wide(words("b")), inputs.values("c"));
    let [m, n, k] = [m, n, k].map(|x| x as usize);
    let without_c = matches!(
        form,
        Instruction::Wgmma {
            operands: WgmmaOperands::Shared,
            ..
        }
    );
    let of_trial = |trial: usize| {
        let (a, b, c) = (
            &a[trial * m * k..],
            &b[trial * n * k..],
            &c[trial * m * n..],
        );
        (0..m * n).map(move |at| {
            let (row, column) = (&a[at / n * k..][..k], &b[at % n * k..][..k]);
            let c = if without_c { 0.0 } else { f64::from(c[at]) };
            let products = || row.iter().zip(column).map(|(a, b)| a * b);
            let magnitude = products().map(f64::abs).sum::<f64>() + c.abs();
            (products().sum::<f64>() + c, eps * magnitude + TINY)
        })
    };
    let outputs = instruction_outputs(form).into_iter().enumerate();
    outputs
        .map(|(probe, (name, shape))| {
            let trials = probe * TRIALS..(probe + 1) * TRIALS;
            let (exact, bound) = trials.flat_map(of_trial).unzip();
            Expected {
                name,
                shape,
                exact,
                bound,
            }
        })
        .collect()
}

/// The format of a product's elements; none for TF32, whose codes have more than 16 bits.
pub(crate) fn operand_format(element: MatrixElement) -> Option<FloatFormat> {
    match element {
        MatrixElement::F16 => Some(F16),
        MatrixElement::BF16 => Some(BF16),
        MatrixElement::E4M3 => Some(E4M3),
        MatrixElement::E5M2 => Some(E5M2),
        MatrixElement::Tf32 => None,
    }
}

/// Element `at` of packed words.
pub(crate) fn number(element: MatrixElement, words: &[u32], at: usize) -> f64 {
    let per_word = (32 / element.bits()) as usize;
    let code = words[at / per_word] >> (at % per_word * element.bits() as usize);
    match operand_format(element) {
        // Bits above the sign are ignored.
        Some(format) => format.decode(code as u16),
        None => f64::from(f32::from_bits(code)),
    }
}

fn code_format(format: CodeFormat) -> FloatFormat {
    match format {
        CodeFormat::F16 => F16,
        CodeFormat::BF16 => BF16,
        CodeFormat::E4M3 => E4M3,
        CodeFormat::E5M2 => E5M2,
        CodeFormat::E2M1 => E2M1,
    }
}

/// Numbers that a conversion to `format` is tried on: values of codes, the middles between them, the f32 on either side of
/// those, what lies beyond, and NaN. Of 16-bit formats every 37th code.
pub(crate) fn encoded(format: CodeFormat) -> Vec<f32> {
    let step = if format.bits() == 16 { 37 } else { 1 };
    let target = code_format(format);
    let codes = (0..1u32 << (format.bits() - 1)).step_by(step);
    let mut values = vec![
        f32::INFINITY,
        f32::MAX,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
    ];
    for code in codes {
        let (value, above) = (target.decode(code as u16), target.decode(code as u16 + 1));
        if !value.is_finite() {
            continue;
        }
        // Above the largest code the next step would have been as wide as the last.
        let above = match above.is_finite() && above > value {
            true => above,
            false => 2.0 * value - target.decode(code as u16 - 1),
        };
        let middle = ((value + above) / 2.0) as f32;
        values.extend([value as f32, middle, middle.next_up(), middle.next_down()]);
    }
    let negative: Vec<f32> = values.iter().map(|x| -x).collect();
    values.extend(negative);
    values.push(f32::NAN);
    values
}

fn encode_all(format: CodeFormat, words: &[u32]) -> Vec<f64> {
    // Conversions to 8 and 4 bits say `satfinite`.
    let overflow = match format.bits() {
        16 => Overflow::Special,
        _ => Overflow::Saturate,
    };
    let of = |&bits: &u32| {
        let value = f64::from(f32::from_bits(bits));
        let code = code_format(format).encode(value, Round::NearestEven, overflow);
        f64::from(code)
    };
    words.iter().map(of).collect()
}

/// The bits of the f16 of both codes of every word, 0x7fff for NaN.
fn decode_all(format: CodeFormat, words: &[u32]) -> Vec<f64> {
    let bits = format.bits();
    let of = |code: u32| {
        let value = code_format(format).decode((code & ((1 << bits) - 1)) as u16);
        let code = F16.encode(value, Round::NearestEven, Overflow::Special);
        f64::from(if value.is_nan() { 0x7fff } else { code })
    };
    words
        .iter()
        .flat_map(|&word| [of(word), of(word >> bits)])
        .collect()
}

/// What lane 4 g + t gets of each matrix: elements 2 t and 2 t + 1 of row g, or of column g.
fn moved(count: usize, transposed: bool, words: &[u32]) -> Vec<f64> {
    let element = |trial: usize, matrix: usize, row: usize, column: usize| {
        let word = words[(trial * count + matrix) * 32 + 4 * row + column / 2];
        f64::from(word >> (16 * (column % 2)) & 0xffff)
    };
    let mut all = Vec::new();
    for (trial, lane) in (0..TRIALS).flat_map(|trial| (0..32).map(move |lane| (trial, lane))) {
        let (g, t) = (lane / 4, lane % 4);
        for (matrix, half) in (0..count).flat_map(|i| [(i, 0), (i, 1)]) {
            let (row, column) = match transposed {
                true => (2 * t + half, g),
                false => (g, 2 * t + half),
            };
            all.push(element(trial, matrix, row, column));
        }
    }
    all
}
