//! Which rows and columns of a tensor the places of an operand stand for.

use super::*;
use crate::error::InvalidProblem;
use crate::quant::SCALE_ROWS;

/// First row or column, and how many.
pub(super) type Span = (usize, usize);

impl Operand {
    /// Tiles of scales of a head, or of the heads that alternate, one below the other.
    pub(super) fn scale_tiles(&self) -> usize {
        let tiles = |&(_, rows): &Span| (rows * self.pack).div_ceil(SCALE_ROWS);
        self.row_spans.iter().map(tiles).sum()
    }

    /// Quads of groups in a row: as many in every batch entry.
    pub(super) fn quads(&self) -> usize {
        let quad = self.format.quad();
        let of = |list: &Vec<Span>| list.iter().map(|s| s.1.div_ceil(quad)).sum();
        self.spans.iter().map(of).max().unwrap_or(0)
    }

    /// First column and number of columns of every quad, for each list of sequences; then first row and number of rows of
    /// every tile of scales, those of alternating heads counted together.
    pub(super) fn table(&self) -> Vec<u32> {
        let (quads, quad) = (self.quads(), self.format.quad());
        let mut words = Vec::with_capacity(2 * quads * self.spans.len());
        for list in &self.spans {
            let end = words.len() + 2 * quads;
            list.iter().for_each(|&span| cut(&mut words, span, quad));
            words.resize(end, 0);
        }
        for &(first, count) in &self.row_spans {
            let span = (first * self.pack, count * self.pack);
            cut(&mut words, span, SCALE_ROWS);
        }
        words
    }

    /// Tile of scales that row `first` starts, if it does and `count` rows from there on follow one another in tiles.
    pub(super) fn tile_of(&self, (first, count): Span) -> Option<usize> {
        let mut tiles = 0;
        for &(start, rows) in &self.row_spans {
            if start <= first && first + count <= start + rows {
                let within = (first - start) * self.pack;
                return within
                    .is_multiple_of(SCALE_ROWS)
                    .then_some(tiles + within / SCALE_ROWS);
            }
            tiles += (rows * self.pack).div_ceil(SCALE_ROWS);
        }
        None
    }

    /// Whether these columns of batch entry `batch` are a piece of a row, behind which are zeros up to four groups.
    pub(super) fn is_span(&self, batch: usize, span: Span) -> bool {
        let list = self.spans.get(batch.min(self.spans.len() - 1));
        list.is_some_and(|list| list.contains(&span))
    }

    /// Column that tensor column `first` of batch entry `batch` became, if it and `count` columns start a piece of a row.
    pub(super) fn column_of(&self, batch: usize, (first, count): Span) -> Option<usize> {
        let mut column = 0;
        for &(start, columns) in self.spans.get(batch.min(self.spans.len() - 1))? {
            if start == first && count <= columns {
                return Some(column);
            }
            column += columns.next_multiple_of(self.format.quad());
        }
        None
    }
}

/// Pieces of `step` of a span, each as its first place and its length.
fn cut(words: &mut Vec<u32>, (first, count): Span, step: usize) {
    for at in (0..count).step_by(step) {
        words.extend([(first + at) as u32, step.min(count - at) as u32]);
    }
}

/// First row and number of rows of what starts a tile of scales: packed sequences of Q and K and the rows behind them, or
/// everything.
pub(super) fn row_spans(
    [_, h, s, d]: [usize; 4],
    options: &OperandOptions<'_>,
) -> Result<Vec<Span>, InvalidProblem> {
    if options.pack == 0 || options.pack > 1 && !h.is_multiple_of(options.pack) {
        return Err(out_of_range("pack", options.pack as i128, h as i128));
    }
    if options.axis == GroupAxis::S {
        if options.pack > 1 {
            return Err(InvalidProblem::Conflict {
                option: "pack",
                with: "groups along s",
            });
        }
        return Ok(vec![(0, d)]);
    }
    if s.saturating_mul(options.pack) > MAX_SEQUENCE {
        let (rows, limit) = (s.saturating_mul(options.pack), MAX_SEQUENCE);
        return Err(out_of_range("s * pack", rows as i128, limit as i128));
    }
    let Some(table) = options.cu_seqlens else {
        return Ok(vec![(0, s)]);
    };
    let sequences = Sequence::packed((table, table), (s, s))?;
    Ok(sequences.iter().map(|x| (x.first_q, x.len_q)).collect())
}

/// First column and number of columns of the pieces of a row.
pub(super) fn spans(
    [b, _, s, d]: [usize; 4],
    options: &OperandOptions<'_>,
) -> Result<Vec<Vec<Span>>, InvalidProblem> {
    let along_d = options.axis == GroupAxis::D;
    if options.lengths.is_some() && along_d {
        return Err(InvalidProblem::Conflict {
            option: "lengths",
            with: "groups along d",
        });
    }
    if s > MAX_SEQUENCE || d > MAX_SEQUENCE {
        return Err(out_of_range(
            "s or d",
            s.max(d) as i128,
            MAX_SEQUENCE as i128,
        ));
    }
    if options.cu_seqlens.is_some() && (b != 1 || options.lengths.is_some()) {
        return Err(InvalidProblem::Conflict {
            option: "cu_seqlens",
            with: "lengths or b > 1",
        });
    }
    if along_d {
        return Ok(vec![vec![(0, d)]]);
    }
    if let Some(table) = options.cu_seqlens {
        let sequences = Sequence::packed((table, table), (s, s))?;
        let of = |x: &Sequence| (x.first_kv, x.len_kv);
        return Ok(vec![sequences.iter().map(of).collect()]);
    }
    let Some(lengths) = options.lengths else {
        return Ok(vec![vec![(0, s)]]);
    };
    expect_entries("lengths", lengths.len(), b)?;
    if let Some((index, &value)) = lengths.iter().enumerate().find(|&(_, &n)| n > s) {
        return Err(InvalidProblem::Entry {
            name: "lengths",
            index,
            value,
            limit: s,
        });
    }
    Ok(lengths.iter().map(|&n| vec![(0, n)]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::OperandFormat;

    const MXFP8: OperandFormat = OperandFormat::Mxfp8(crate::quant::ScaleRule::Ceil);

    #[test]
    fn sequences_start_tiles_and_fill_their_last_one() {
        let options = OperandOptions {
            cu_seqlens: Some(&[0, 70, 70, 200]),
            pack: 2,
            ..OperandOptions::rows(MXFP8)
        };
        let spans = row_spans([1, 4, 230, 64], &options).unwrap();
        assert_eq!(spans, [(0, 70), (70, 0), (70, 130), (200, 30)]);
    }

    #[test]
    fn heads_that_cannot_alternate_are_named() {
        let of = |pack, axis| {
            let options = OperandOptions {
                axis,
                pack,
                ..OperandOptions::rows(MXFP8)
            };
            row_spans([1, 4, 8, 8], &options).map_err(|e| e.to_string())
        };
        assert_eq!(
            of(3, GroupAxis::D).unwrap_err(),
            "pack = 3 is out of range, the limit is 4"
        );
        assert_eq!(
            of(0, GroupAxis::D).unwrap_err(),
            "pack = 0 is out of range, the limit is 4"
        );
        assert_eq!(
            of(2, GroupAxis::S).unwrap_err(),
            "pack cannot be combined with groups along s"
        );
        assert_eq!(of(4, GroupAxis::D).unwrap(), [(0, 8)]);
    }
}
