//! Keys and values as E4M3 codes: what a code means, and the scales beside them.

use cubecl::prelude::*;

use super::{LogitTensors, TableOffsets};

/// The value of an E4M3 code: sign, 4 bits of exponent of bias 7, 3 of mantissa, no infinity, NaN where
/// all but the sign are set.
#[cube]
pub fn e4m3_value(code: u32) -> f32 {
    let magnitude = code & 0x7Fu32;
    // Normal codes by their bits, subnormal ones by their count: drivers may flush f32 subnormals.
    let normal = f32::reinterpret((magnitude << 20u32) + comptime!(120u32 << 23));
    let subnormal = f32::cast_from(magnitude) * comptime!(1.0f32 / 512.0);
    let value = select(magnitude < 8u32, subnormal, normal);
    // NaN as 0 / 0 would be: all bits of the exponent, and one more.
    let value = select(
        magnitude == 0x7Fu32,
        f32::reinterpret(0x7FC0_0000u32),
        value,
    );
    select(code >= 0x80u32, -value, value)
}

/// Factors on the codes of one head's keys or values.
#[derive(CubeType, Clone, Copy)]
pub struct CodeScales<'a> {
    tensors: &'a LogitTensors,
    /// The head's factor in the first page.
    at: usize,
    /// From one page to the next; 0 where all pages share one.
    page: usize,
    #[cube(comptime)]
    values: bool,
}

#[cube]
impl<'a> CodeScales<'a> {
    /// Those of key head `head`, of its values or of its keys.
    pub fn new(
        tensors: &'a LogitTensors,
        offsets: &TableOffsets,
        head: u32,
        #[comptime] values: bool,
    ) -> CodeScales<'a> {
        let (first, lane, page) = if comptime!(values) {
            (offsets.v_scales, offsets.v_scale_head, offsets.v_scale_page)
        } else {
            (offsets.k_scales, offsets.k_scale_head, offsets.k_scale_page)
        };
        CodeScales::<'a> {
            tensors,
            at: first + head as usize * lane,
            page,
            values,
        }
    }

    /// The factor in page `page`.
    pub fn of(&self, page: u32) -> f32 {
        let at = self.at + page as usize * self.page;
        if comptime!(self.values) {
            scale_at(&self.tensors.v_scales, at)
        } else {
            scale_at(&self.tensors.k_scales, at)
        }
    }
}

#[cube]
fn scale_at(scales: &ComptimeOption<Box<[f32]>>, at: usize) -> f32 {
    #[comptime]
    match scales {
        ComptimeOption::Some(scales) => scales[at],
        ComptimeOption::None => 1.0f32,
    }
}
