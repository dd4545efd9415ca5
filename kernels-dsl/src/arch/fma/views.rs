//! Operands of the unit tier in global memory, and its two products.

use cubecl::prelude::*;

use crate::attention::{CodeScales, KeyPages, e4m3_value};
use crate::tile::{Fragment, Layout};

/// One row of `len` vectors: the unit's own left operand.
#[derive(CubeType)]
pub struct RowView<'a, E: Float, N: Size> {
    data: &'a [Vector<E, N>],
    at: usize,
    #[cube(comptime)]
    len: usize,
}

/// Rows of `len` vectors, taken `block` at a time: the right operand.
#[derive(CubeType)]
pub struct BlockView<'a, E: Float, N: Size> {
    data: &'a [Vector<E, N>],
    base: usize,
    stride: usize,
    rows: u32,
    /// From one page to the next.
    page_stride: usize,
    pages: ComptimeOption<KeyPages<'a>>,
    codes: ComptimeOption<CodedRows<'a>>,
    #[cube(comptime)]
    len: usize,
}

/// Rows `[first, first + rows)` of a head of a batch entry.
#[derive(CubeType, Clone, Copy)]
pub struct RowRange {
    /// Batch entry.
    pub batch: u32,
    /// Head.
    pub head: u32,
    /// First row.
    pub first: u32,
    /// Rows.
    pub rows: u32,
}

/// E4M3 codes in the place of elements, four a word.
#[derive(CubeType)]
pub struct CodedRows<'a> {
    /// The words.
    pub words: &'a ComptimeOption<Box<[u32]>>,
    /// Factors on them.
    pub scales: CodeScales<'a>,
    /// Factors differ from page to page.
    #[cube(comptime)]
    pub by_page: bool,
}

#[cube]
impl<'a, E: Float, N: Size> RowView<'a, E, N> {
    /// Row `row` of (batch, head), `len` vectors long.
    pub fn new(
        data: &'a [Vector<E, N>],
        layout: &Layout,
        batch: u32,
        head: u32,
        row: u32,
        #[comptime] len: usize,
    ) -> RowView<'a, E, N> {
        RowView::<'a, E, N> {
            data,
            at: layout.base(batch, head) + row as usize * layout.row,
            len,
        }
    }
}

#[cube]
impl<'a, E: Float, N: Size> BlockView<'a, E, N> {
    /// Rows `[first, end)` of (batch, head), each `len` vectors long; blocks count from `first`.
    pub fn new(
        data: &'a [Vector<E, N>],
        layout: &Layout,
        batch: u32,
        head: u32,
        first: u32,
        end: u32,
        #[comptime] len: usize,
    ) -> BlockView<'a, E, N> {
        BlockView::<'a, E, N> {
            data,
            base: layout.base(batch, head) + first as usize * layout.row,
            stride: layout.row,
            rows: end - first,
            page_stride: 0usize,
            pages: ComptimeOption::new_None(),
            codes: ComptimeOption::new_None(),
            len,
        }
    }

    /// The rows of `range`, in pages where there are any (the layout's batch
    /// entries are pages then), as codes where there are any.
    pub fn cached(
        data: &'a [Vector<E, N>],
        layout: &Layout,
        range: &RowRange,
        pages: ComptimeOption<KeyPages<'a>>,
        codes: ComptimeOption<CodedRows<'a>>,
        #[comptime] len: usize,
    ) -> BlockView<'a, E, N> {
        BlockView::<'a, E, N> {
            data,
            base: layout.base(range.batch, range.head) + range.first as usize * layout.row,
            stride: layout.row,
            rows: range.rows,
            page_stride: layout.batch,
            pages,
            codes,
            len,
        }
    }

    /// Vector `at` of the rows, without its scale.
    fn load(&self, at: usize) -> Vector<f32, N> {
        #[comptime]
        match &self.codes {
            ComptimeOption::Some(codes) => {
                let first = at * N::value();
                let mut out = Vector::<f32, N>::zeroed();
                let word = word_at(codes.words, first / 4);
                #[unroll]
                for lane in 0..N::value() {
                    let shift = ((first + lane) % 4) as u32 * 8u32;
                    out.insert(lane, e4m3_value((word >> shift) & 0xFFu32));
                }
                out
            }
            ComptimeOption::None => Vector::<f32, N>::cast_from(self.data[at]),
        }
    }

    /// Scale of row `c` of block `j`, 1 where rows are no codes.
    fn scale(&self, j: u32, #[comptime] c: usize, #[comptime] block: usize) -> f32 {
        #[comptime]
        match &self.codes {
            ComptimeOption::Some(codes) => {
                let row = j * comptime!(block as u32) + comptime!(c as u32);
                let row = row.min(self.rows - 1u32);
                let mut page = 0u32;
                if comptime!(codes.by_page) {
                    page = page_in(&self.pages, row);
                }
                codes.scales.of(page)
            }
            ComptimeOption::None => 1.0f32,
        }
    }

    /// First vector of row `c` of block `j`; rows past the end read the last one, whose scores
    /// are masked and whose weights are zero.
    fn row(&self, j: u32, #[comptime] c: usize, #[comptime] block: usize) -> usize {
        let row = j * comptime!(block as u32) + comptime!(c as u32);
        let row = row.min(self.rows - 1u32);
        #[comptime]
        match &self.pages {
            ComptimeOption::Some(pages) => {
                self.base
                    + pages.page_of(row) as usize * self.page_stride
                    + (row % comptime!(pages.page)) as usize * self.stride
            }
            ComptimeOption::None => self.base + row as usize * self.stride,
        }
    }
}

#[cube]
fn page_in(pages: &ComptimeOption<KeyPages<'_>>, row: u32) -> u32 {
    #[comptime]
    match pages {
        ComptimeOption::Some(pages) => pages.page_of(row),
        ComptimeOption::None => 0u32,
    }
}

#[cube]
fn word_at(words: &ComptimeOption<Box<[u32]>>, at: usize) -> u32 {
    #[comptime]
    match words {
        ComptimeOption::Some(words) => words[at],
        ComptimeOption::None => 0u32,
    }
}

/// `[block]` f32: the unit's row of a block of scores.
#[derive(CubeType)]
pub struct ScoreRow {
    /// The values.
    pub x: Array<f32>,
    /// Row of the tile this unit owns.
    pub row: u32,
}

#[cube]
impl ScoreRow {
    /// Room for a block of scores of the tile's row `row`.
    pub fn new(row: u32, #[comptime] block: usize) -> ScoreRow {
        ScoreRow {
            x: Array::<f32>::new(block),
            row,
        }
    }
}

/// `[len]` vectors of f32: the unit's row of an accumulator.
#[derive(CubeType)]
pub struct AccRow<N: Size> {
    /// The values.
    pub x: Array<Vector<f32, N>>,
}

#[cube]
impl<N: Size> AccRow<N> {
    /// Zeros.
    pub fn zeroed(#[comptime] len: usize) -> AccRow<N> {
        let mut x = Array::<Vector<f32, N>>::new(len);
        for i in 0..len {
            x[i] = Vector::<f32, N>::zeroed();
        }
        AccRow::<N> { x }
    }
}

/// (U, block) -> row U of the tile, column c of the block: a unit owns its row alone.
pub struct RowFragment;

#[cube]
impl Fragment for RowFragment {
    type Regs = ScoreRow;

    fn rows(_f: &ScoreRow) -> comptime_type!(usize) {
        1usize
    }
    fn cols(f: &ScoreRow) -> comptime_type!(usize) {
        f.x.len()
    }
    fn get(f: &ScoreRow, #[comptime] _r: usize, #[comptime] c: usize) -> f32 {
        f.x[c]
    }
    fn set(f: &mut ScoreRow, #[comptime] _r: usize, #[comptime] c: usize, x: f32) {
        f.x[c] = x;
    }
    fn row(f: &ScoreRow, #[comptime] _r: usize) -> u32 {
        f.row
    }
    fn first_col(_f: &ScoreRow) -> u32 {
        0u32.runtime()
    }
    fn col_step(_f: &ScoreRow, #[comptime] c: usize) -> comptime_type!(u32) {
        c as u32
    }
    fn reduce_max(x: f32) -> f32 {
        x
    }
    fn reduce_sum(x: f32) -> f32 {
        x
    }
}

/// `x[c] = sum_d row[d] * block(j)[c][d]`: the product that contracts the head dimension.
#[cube]
pub fn row_times_transposed<E: Float, N: Size>(
    row: &RowView<'_, E, N>,
    blocks: &BlockView<'_, E, N>,
    j: u32,
    out: &mut ScoreRow,
) {
    let block = out.x.len();
    let len = comptime!(row.len);
    let mut at = Array::<usize>::new(block);
    let mut part = Array::<Vector<f32, N>>::new(block);
    #[unroll]
    for c in 0..block {
        at[c] = blocks.row(j, c, block);
        part[c] = Vector::<f32, N>::zeroed();
    }
    for i in 0..len {
        let a = Vector::<f32, N>::cast_from(row.data[row.at + i]);
        #[unroll]
        for c in 0..block {
            let b = blocks.load(at[c] + i);
            part[c] = fma(a, b, part[c]);
        }
    }
    #[unroll]
    for c in 0..block {
        out.x[c] = sum_lanes::<N>(part[c]);
        if comptime!(blocks.codes.is_some()) {
            out.x[c] *= blocks.scale(j, c, block);
        }
    }
}

/// Sum over the lanes of a vector.
#[cube]
pub fn sum_lanes<N: Size>(x: Vector<f32, N>) -> f32 {
    let lanes = x.vector_size();
    let mut sum = x.extract(0usize);
    #[unroll]
    for lane in 1..lanes {
        sum += x.extract(lane);
    }
    sum
}

/// `acc += sum_c p[c] * block(j)[c]`: the product that contracts the sequence. With `hidden` set a
/// zero weight keeps its row out altogether, NaN and Inf included.
#[cube]
pub fn weights_times_block<E: Float, N: Size>(
    p: &ScoreRow,
    blocks: &BlockView<'_, E, N>,
    j: u32,
    acc: &mut AccRow<N>,
    #[comptime] hidden: bool,
) {
    let block = p.x.len();
    let len = comptime!(blocks.len);
    let mut at = Array::<usize>::new(block);
    let mut weight = Array::<f32>::new(block);
    #[unroll]
    for c in 0..block {
        at[c] = blocks.row(j, c, block);
        weight[c] = p.x[c];
        if comptime!(blocks.codes.is_some()) {
            // A scale of no page that the row may see must not spread either.
            let scaled = p.x[c] * blocks.scale(j, c, block);
            weight[c] = select(p.x[c] == 0.0f32, 0.0f32, scaled);
        }
    }
    for i in 0..len {
        let mut sum = acc.x[i];
        #[unroll]
        for c in 0..block {
            let b = blocks.load(at[c] + i);
            let more = fma(Vector::<f32, N>::new(weight[c]), b, sum);
            if comptime!(hidden) {
                sum = select(p.x[c] == 0.0f32, sum, more);
            } else {
                sum = more;
            }
        }
        acc.x[i] = sum;
    }
}
