//! `append`: check, bind, launch.

use core::fmt;

use cubecl::prelude::{BufferArg, Client, CubeDim, CubeElement};
use cubecl::server::Handle;

use super::*;
use crate::attention::{
    AppendShape, AppendSizesLaunch, LogitTensorsLaunch, RopePairs, TableOffsetsLaunch,
    advance_lengths, append_rows_fma, copy_pages_fma,
};
use crate::error::{Error, InvalidProblem};

/// Rotary position embedding of keys on their way into a cache.
#[derive(Debug, Clone)]
pub struct Rope {
    /// cos of the angles, f32 [positions, columns / 2]; `columns`, even, may be less than d, and the
    /// columns from there on stay as they are.
    pub cos: Tensor<2>,
    /// sin of the angles, f32, of the same shape.
    pub sin: Tensor<2>,
    /// Which columns are paired.
    pub pairs: RopePairs,
}

/// Options of [`append`].
#[derive(Debug, Clone, Default)]
pub struct AppendOptions<'a> {
    /// Keys that every sequence has already `[b]`; none when absent. [`KvView::lengths`] says it where
    /// only the device knows.
    pub lengths: Option<&'a [usize]>,
    /// Rows of every sequence `[b]` as (first, count) of the s new ones: left-padded batches start
    /// later, ragged ones end sooner. All of them when absent.
    pub rows: Option<&'a [(usize, usize)]>,
    /// Rotate keys by the angles of the rows they come to lie in.
    pub rope: Option<Rope>,
    /// With lengths of the device: count the new rows there when they are written.
    pub advance: bool,
}

/// Comptime choices of the append kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AppendBlueprint {
    /// Element type of rows and cache.
    pub dtype: DType,
    /// Columns, pages and rotation.
    pub shape: AppendShape,
    /// Units of a cube.
    pub units: usize,
    /// 64-bit addressing.
    pub wide: bool,
}

impl fmt::Display for AppendBlueprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AppendShape { d, page, rope, .. } = self.shape;
        write!(f, "append/unit/{}/d{d}/u{}", self.dtype, self.units)?;
        match rope {
            Some((RopePairs::Interleaved, columns)) => write!(f, "/rope-interleaved{columns}")?,
            Some((RopePairs::HalfSplit, columns)) => write!(f, "/rope-halves{columns}")?,
            None => {}
        }
        if let Some(page) = page {
            write!(f, "/page{page}")?;
        }
        match self.wide {
            true => write!(f, "/wide"),
            false => Ok(()),
        }
    }
}

/// Writes new rows of K and V behind those that a cache holds.
///
/// ```text
/// cache[len + i] = rotate(new[first + i], angle(len + i))      i below count; v is not rotated
/// ```
/// k_new [b, h_kv, s, d] and v_new [b, h_kv, s, d_v] in the cache's dtype, any strides with the last
/// axis contiguous. Rows outside (first, count) are not read. Returns the blueprint of K's kernel,
/// `None` when there was nothing to write.
///
/// # Errors
/// [`InvalidProblem`] when a sequence would outgrow what it can have, names a page that does not
/// exist, or stands past the rotation's table: nothing is written then. Lengths and pages of the
/// device are not checked; rows past the capacity are left out.
///
/// ```no_run
/// use flashcube_kernels::{AppendOptions, DType, KvView, PageTable, Tensor, append};
///
/// # fn demo(client: &cubecl::prelude::Client) -> Result<(), flashcube_kernels::Error> {
/// let pool = || Tensor::empty(client, [100, 8, 64, 128], DType::BF16);
/// let cache = KvView::paged(pool(), pool(), PageTable::checked(&[17, 4, 99, 0], 2));
/// let rows = || Tensor::empty(client, [2, 8, 1, 128], DType::BF16);
/// let options = AppendOptions { lengths: Some(&[70, 5]), ..AppendOptions::default() };
/// append(client, &cache, &rows(), &rows(), &options)?;
/// # Ok(())
/// # }
/// ```
pub fn append(
    client: &Client,
    cache: &KvView<'_>,
    k_new: &Tensor<4>,
    v_new: &Tensor<4>,
    options: &AppendOptions<'_>,
) -> Result<Option<AppendBlueprint>, Error> {
    let call = AppendCall::check(client, cache, k_new, v_new, options)?;
    if call.counts.iter().all(|&n| n == 0) || k_new.shape[1] == 0 {
        return Ok(None);
    }
    let k = call.write(&cache.k, k_new, options.rope.as_ref())?;
    call.write(&cache.v, v_new, None)?;
    call.advance(options)?;
    Ok(Some(k))
}

struct AppendCall<'a> {
    client: &'a Client,
    caps: Caps,
    cache: &'a KvView<'a>,
    counts: Vec<usize>,
    /// Sequences get rows of their own number and place.
    ragged: bool,
    /// Keys there are, rows that come, first of them, pages, and how many words that is; `None` where
    /// the device knows it all.
    table: Option<(Handle, usize)>,
}

impl<'a> AppendCall<'a> {
    fn check(
        client: &'a Client,
        cache: &'a KvView<'a>,
        k_new: &Tensor<4>,
        v_new: &Tensor<4>,
        options: &AppendOptions<'_>,
    ) -> Result<Self, InvalidProblem> {
        let [b, h, s, d] = k_new.shape;
        let d_v = v_new.shape[3];
        expect_axes(
            "v_new",
            ["b", "h_kv", "s", "d_v"],
            v_new.shape,
            [b, h, s, d_v],
        )?;
        let [rows, _, page, _] = cache.k.shape;
        let entries = if cache.pages.is_some() { rows } else { b };
        let axes = ["b", "h_kv", "s_kv", "d"];
        expect_axes("cache of k", axes, cache.k.shape, [entries, h, page, d])?;
        expect_axes("cache of v", axes, cache.v.shape, [entries, h, page, d_v])?;
        for (name, tensor) in [("k_new", k_new), ("v_new", v_new)] {
            expect_dtype(name, tensor.dtype, cache.k.dtype)?;
            tensor.check(name)?;
        }
        expect_dtype("cache of v", cache.v.dtype, cache.k.dtype)?;
        cache.k.check_output("cache of k")?;
        cache.v.check_output("cache of v")?;
        if let Some(pages) = &cache.pages {
            pages.check(b)?;
        }
        if let Some(words) = &cache.lengths {
            words.check("lengths of the device", b)?;
            if options.lengths.is_some() {
                let (option, with) = ("lengths of the device", "lengths");
                return Err(InvalidProblem::Conflict { option, with });
            }
        }
        let (firsts, counts) = rows_of(options.rows, b, s)?;
        let lengths = match options.lengths {
            Some(lengths) => lengths.to_vec(),
            None => vec![0; b],
        };
        expect_entries("lengths", lengths.len(), b)?;
        let known = cache.lengths.is_none();
        check_ends(cache, &lengths, &counts, options.rope.as_ref(), known)?;
        check_rope(options.rope.as_ref(), d)?;
        let mut words: Vec<u32> = Vec::new();
        for table in [&lengths, &counts, &firsts] {
            words.extend(table.iter().map(|&n| n as u32));
        }
        let source = cache.pages.as_ref().map(PageTable::source);
        if let Some(PageSource::Host(pages)) = source {
            words.extend(pages.iter());
        }
        let ragged = options.rows.is_some();
        let host = options.lengths.is_some() || matches!(source, Some(PageSource::Host(_)));
        let upload = || (client.create_from_slice(u32::as_bytes(&words)), words.len());
        Ok(Self {
            client,
            caps: Caps::of(client),
            cache,
            counts,
            ragged,
            table: ((ragged || host) && !words.is_empty()).then(upload),
        })
    }

    /// Writes the rows of k or v.
    fn write(
        &self,
        cache: &Tensor<4>,
        new: &Tensor<4>,
        rope: Option<&Rope>,
    ) -> Result<AppendBlueprint, Error> {
        let [b, h, s, d] = new.shape;
        let shape = AppendShape {
            d,
            page: self.cache.pages.as_ref().map(|_| cache.shape[2] as u32),
            rope: rope.map(|rope| (rope.pairs, 2 * rope.cos.shape[1])),
            ragged: self.ragged,
        };
        const WHAT: &str = "append";
        check_dtype(WHAT, new.dtype, &self.caps)?;
        let tables = rope.map_or(0, |rope| rope.cos.reach().max(rope.sin.reach()));
        let angles = |of: fn(&Rope) -> &Tensor<2>| {
            rope.map_or((0, 0), |rope| (of(rope).offset, of(rope).strides[0]))
        };
        let ((cos, cos_row), (sin, sin_row)) = (angles(|r| &r.cos), angles(|r| &r.sin));
        let reach = cache.reach().max(new.reach()).max(tables);
        let blueprint = AppendBlueprint {
            dtype: new.dtype,
            shape,
            units: cube_units(&self.caps),
            wide: check_reach(WHAT, reach, &self.caps)?,
        };
        let total = b * h * s * d;
        if total == 0 {
            return Ok(blueprint);
        }
        let cubes = spread(WHAT, total.div_ceil(blueprint.units), &self.caps)?;
        let (tensors, offsets) = self.tables(b);
        let sizes = AppendSizesLaunch::new(
            b,
            2 * b,
            h as u32,
            s as u32,
            self.cache.capacity().min(u32::MAX as usize) as u32,
            total,
            cos,
            cos_row,
            sin,
            sin_row,
        );
        // SAFETY: every view was checked against its buffer; units past `total`, rows past the counts
        // and keys past the capacity do nothing; pages were checked or are the caller's promise.
        unsafe {
            append_rows_fma::launch_unchecked(
                self.client,
                cubes,
                CubeDim::new_1d(blueprint.units as u32),
                address(blueprint.wide),
                buffer(new, 1),
                buffer(cache, 1),
                rope.map(|rope| buffer(&rope.cos, 1)).into(),
                rope.map(|rope| buffer(&rope.sin, 1)).into(),
                tensors,
                offsets,
                layout(new, 1),
                layout(cache, 1),
                sizes,
                shape,
                new.dtype.elem(),
            );
        }
        check_launch(self.client, &self.caps, &blueprint, [&cache.handle])?;
        Ok(blueprint)
    }

    /// The host's table, where there is one.
    fn table(&self) -> Option<BufferArg> {
        let (handle, words) = self.table.as_ref()?;
        // SAFETY: the length is that of the words just uploaded.
        Some(unsafe { BufferArg::from_raw_parts(handle.clone(), *words) })
    }

    fn tables(&self, b: usize) -> (LogitTensorsLaunch, TableOffsetsLaunch) {
        // SAFETY: the lengths are the buffers' own.
        let device = |words: &DeviceWords| unsafe {
            BufferArg::from_raw_parts(words.handle.clone(), words.capacity())
        };
        let table = self.table();
        let (mut pages, mut row, mut words) = (3 * b, 0, None);
        if let Some(table) = &self.cache.pages {
            row = table.row();
            if let PageSource::Device(of) = table.source() {
                pages = of.offset;
                words = Some(device(of));
            }
        }
        let lengths = self.cache.lengths.as_ref();
        let first = lengths.map_or(0, |words| words.offset);
        (
            LogitTensorsLaunch::new(
                None.into(),
                None.into(),
                table.into(),
                lengths.map(device).into(),
                words.into(),
                None.into(),
                None.into(),
            ),
            TableOffsetsLaunch::new(0, first, 0, 0, 0, 0, 0, 0, 0, pages, row, 0, 0, 0, 0, 0, 0),
        )
    }

    /// Counts the new rows in the lengths of the device.
    fn advance(&self, options: &AppendOptions<'_>) -> Result<(), Error> {
        let Some(lengths) = self.cache.lengths.as_ref().filter(|_| options.advance) else {
            return Ok(());
        };
        let b = self.counts.len();
        // Every sequence gets as many where no table says otherwise.
        let each = self.counts.first().copied().unwrap_or(0);
        let counts = self.table().filter(|_| self.ragged);
        let units = cube_units(&self.caps);
        let cubes = spread("append", b.div_ceil(units), &self.caps)?;
        // SAFETY: both buffers were checked to hold b words from their offsets on.
        unsafe {
            advance_lengths::launch_unchecked(
                self.client,
                cubes,
                CubeDim::new_1d(units as u32),
                BufferArg::from_raw_parts(lengths.handle.clone(), lengths.capacity()),
                counts.into(),
                lengths.offset,
                b,
                each as u32,
                b,
                self.cache.capacity().min(u32::MAX as usize) as u32,
            );
        }
        check_launch(
            self.client,
            &self.caps,
            &"append/lengths",
            [&lengths.handle],
        )
    }
}

/// First rows and counts of every sequence within the s new ones.
fn rows_of(
    rows: Option<&[(usize, usize)]>,
    b: usize,
    s: usize,
) -> Result<(Vec<usize>, Vec<usize>), InvalidProblem> {
    let Some(rows) = rows else {
        return Ok((vec![0; b], vec![s; b]));
    };
    expect_entries("rows", rows.len(), b)?;
    for (index, &(first, count)) in rows.iter().enumerate() {
        let end = first.saturating_add(count);
        if end > s {
            return Err(InvalidProblem::Entry {
                name: "rows",
                index,
                value: end,
                limit: s,
            });
        }
    }
    Ok(rows.iter().copied().unzip())
}

/// Where every sequence ends lies within its capacity, its pages and the rotation's table.
fn check_ends(
    cache: &KvView<'_>,
    lengths: &[usize],
    counts: &[usize],
    rope: Option<&Rope>,
    known: bool,
) -> Result<(), InvalidProblem> {
    let positions = rope.map_or(usize::MAX, |rope| rope.cos.shape[0]);
    let limits = [
        ("keys of a sequence", cache.capacity()),
        ("positions of the rotation", positions),
    ];
    let end = |sequence: usize| lengths[sequence].saturating_add(counts[sequence]);
    for (name, limit) in limits.into_iter().filter(|_| known) {
        let past = (0..lengths.len()).find(|&s| counts[s] > 0 && end(s) > limit);
        if let Some(index) = past {
            return Err(InvalidProblem::Entry {
                name,
                index,
                value: end(index),
                limit,
            });
        }
    }
    if let Some(pages) = &cache.pages
        && let PageSource::Host(words) = pages.source()
    {
        // Without lengths any entry may be the one that is written to.
        let used = |s: usize| if known { end(s) } else { cache.capacity() };
        check_pages(words, pages.width(), cache, used)?;
    }
    Ok(())
}

fn check_rope(rope: Option<&Rope>, d: usize) -> Result<(), InvalidProblem> {
    let Some(rope) = rope else {
        return Ok(());
    };
    expect_axes(
        "sin",
        ["positions", "columns / 2"],
        rope.sin.shape,
        rope.cos.shape,
    )?;
    for (name, table) in [("cos", &rope.cos), ("sin", &rope.sin)] {
        expect_dtype(name, table.dtype, DType::F32)?;
        table.check(name)?;
    }
    match 2 * rope.cos.shape[1] {
        columns if columns > d => Err(out_of_range(
            "columns of the rotation",
            columns as i128,
            d as i128,
        )),
        _ => Ok(()),
    }
}

/// Copies whole pages within a pool [pages, h_kv, page, d]: rows of `from` become those of `to`, for
/// every (from, to). No page may be a target twice, nor a target and a source.
///
/// # Errors
/// [`InvalidProblem::Entry`] for a page that does not exist or is written while it is read.
pub fn copy_pages(client: &Client, pool: &Tensor<4>, pairs: &[(u32, u32)]) -> Result<(), Error> {
    const WHAT: &str = "copy_pages";
    pool.check_output("pool")?;
    let [pages, h, rows, d] = pool.shape;
    let mut targets = std::collections::HashSet::new();
    let sources: std::collections::HashSet<u32> = pairs.iter().map(|&(from, _)| from).collect();
    for (index, &(from, to)) in pairs.iter().enumerate() {
        let twice = !targets.insert(to) || sources.contains(&to);
        if twice || from as usize >= pages || to as usize >= pages {
            return Err(InvalidProblem::Entry {
                name: "pages to copy",
                index,
                value: from.max(to) as usize,
                limit: pages.saturating_sub(1),
            }
            .into());
        }
    }
    let total = pairs.len() * h * rows * d;
    if total == 0 {
        return Ok(());
    }
    let caps = Caps::of(client);
    check_dtype(WHAT, pool.dtype, &caps)?;
    let wide = check_reach(WHAT, pool.reach(), &caps)?;
    let words: Vec<u32> = pairs.iter().flat_map(|&(from, to)| [from, to]).collect();
    let handle = client.create_from_slice(u32::as_bytes(&words));
    let units = cube_units(&caps);
    let cubes = spread(WHAT, total.div_ceil(units), &caps)?;
    // SAFETY: the pool was checked against its buffer and the pairs against the pool; units past
    // `total` do nothing; no element is both read and written.
    unsafe {
        copy_pages_fma::launch_unchecked(
            client,
            cubes,
            CubeDim::new_1d(units as u32),
            address(wide),
            buffer(pool, 1),
            BufferArg::from_raw_parts(handle, words.len()),
            layout(pool, 1),
            h as u32,
            rows as u32,
            total,
            d,
            pool.dtype.elem(),
        );
    }
    let blueprint = format!("copy_pages/unit/{}/d{d}", pool.dtype);
    check_launch(client, &caps, &blueprint, [&pool.handle])
}
