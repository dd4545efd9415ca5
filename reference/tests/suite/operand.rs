//! Operands of block-scaled products: groups, tails, sequences, tiles of scales.

use flashcube_reference::Tensor4;
use flashcube_reference::quant::e8m0::ScaleRule;
use flashcube_reference::quant::operand::{Operand, OperandFormat, round_columns, round_rows};

use crate::cases::{Random, assert_close};

const FORMATS: [OperandFormat; 3] = [
    OperandFormat::Nvfp4 { exponent: 3 },
    OperandFormat::Mxfp4(ScaleRule::Ceil),
    OperandFormat::Mxfp8(ScaleRule::Floor),
];

/// One sequence.
fn one(range: std::ops::Range<usize>) -> Vec<std::ops::Range<usize>> {
    vec![range]
}

#[test]
fn rows_end_in_zeros_up_to_four_groups() {
    let x = Random::new(1).tensor([1, 1, 3, 40]);
    for format in FORMATS {
        let operand = Operand::of_rows(&x, (0, 0), format).unwrap();
        assert_eq!((operand.rows, operand.columns), (3, 4 * format.group()));
        let values = operand.dequantize().unwrap();
        for row in values.chunks(operand.columns) {
            assert!(row[40..].iter().all(|&x| x == 0.0));
            assert!(row[..40].iter().any(|&x| x != 0.0));
        }
    }
}

#[test]
fn values_of_few_bits_are_kept() {
    let codes = [0.0, 0.5, -1.0, 1.5, 2.0, -3.0, 4.0, 6.0];
    let x = Tensor4::from_fn([1, 2, 72, 24], |[_, h, s, d]| {
        codes[(s + d + h) % 8] * [1.0, 0.25][h]
    });
    for format in FORMATS {
        assert!(round_rows(&x, format).unwrap() == x);
        assert!(round_columns(&x, &[one(0..72)], format).unwrap() == x);
    }
}

#[test]
fn a_group_never_crosses_into_the_next_sequence() {
    let mut random = Random::new(2);
    let x = random.tensor([1, 1, 61, 3]);
    // The same with the second sequence a thousand times larger.
    let mut scaled = x.clone();
    scaled.data[20 * 3..].iter_mut().for_each(|x| *x *= 1000.0);
    for format in FORMATS {
        let cut = [vec![0..20, 20..20, 20..61]];
        let [plain, large] = [&x, &scaled].map(|x| round_columns(x, &cut, format).unwrap());
        assert_close(&plain.data[..60], &large.data[..60], 0.0);
        let whole = round_columns(&scaled, &[one(0..61)], format).unwrap();
        assert_ne!(whole.data[..60], plain.data[..60]);
        // Rows of no sequence are 0.
        let short = round_columns(&x, &[one(0..20)], format).unwrap();
        assert_close(&short.data[..60], &plain.data[..60], 0.0);
        assert!(short.data[60..].iter().all(|&x| x == 0.0));
    }
}

#[test]
fn scales_lie_in_tiles_of_128_rows_by_4_groups() {
    let x = Random::new(3).tensor([1, 1, 200, 130]);
    for format in FORMATS {
        let operand = Operand::of_rows(&x, (0, 0), format).unwrap();
        let groups = operand.columns / format.group();
        let tiled = operand.tiled_scales();
        assert_eq!(tiled.len(), 256 * groups);
        let mut places = vec![0; tiled.len()];
        for (row, group) in (0..200).flat_map(|r| (0..groups).map(move |g| (r, g))) {
            // 32 rows of 16 bytes; the 32-row quarters of a tile lie 4 bytes apart.
            let (tile, r, g) = (row / 128 * (groups / 4) + group / 4, row % 128, group % 4);
            let at = tile * 512 + (r % 32) * 16 + (r / 32) * 4 + g;
            assert_eq!(tiled[at], operand.scales[row * groups + group]);
            places[at] += 1;
        }
        assert!(places.iter().all(|&n| n <= 1));
        let unused = tiled.iter().zip(&places).filter(|(_, n)| **n == 0);
        assert!(unused.into_iter().all(|(&scale, _)| scale == 0));
    }
}

#[test]
fn a_tensor_has_a_list_of_sequences_for_every_batch_entry() {
    let x = Tensor4::zeros([2, 1, 4, 4]);
    assert!(round_columns(&x, &[one(0..4)], FORMATS[0]).is_err());
}
