//! Checks that every launch shares.

use core::fmt;

use cubecl::prelude::Client;
use cubecl::server::Handle;

use super::{Caps, DType};
use crate::error::{Error, InvalidProblem, RuntimeFailure};

/// Every axis of `tensor` has the expected size.
pub(crate) fn expect_axes<const N: usize>(
    tensor: &'static str,
    axes: [&'static str; N],
    found: [usize; N],
    expected: [usize; N],
) -> Result<(), InvalidProblem> {
    match (0..N).find(|&a| found[a] != expected[a]) {
        None => Ok(()),
        Some(a) => Err(InvalidProblem::Shape {
            tensor,
            axis: axes[a],
            found: found[a],
            expected: expected[a],
        }),
    }
}

/// `tensor` has the expected dtype.
pub(crate) fn expect_dtype(
    tensor: &'static str,
    found: DType,
    expected: DType,
) -> Result<(), InvalidProblem> {
    if found == expected {
        return Ok(());
    }
    Err(InvalidProblem::Dtype {
        tensor,
        found,
        expected: expected.to_string(),
    })
}

/// A host table has as many entries as it should.
pub(crate) fn expect_entries(
    name: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), InvalidProblem> {
    if found == expected {
        return Ok(());
    }
    Err(InvalidProblem::Entries {
        name,
        found,
        expected,
    })
}

/// A compile or binding failure of the launch that writes `outputs`, as an error of this call;
/// otherwise it would surface at somebody's later read. Does not wait for the device.
pub(crate) fn check_launch<const N: usize>(
    client: &Client,
    caps: &Caps,
    blueprint: &impl fmt::Display,
    outputs: [&Handle; N],
) -> Result<(), Error> {
    client.check(outputs).map_err(|e| {
        Error::Runtime(RuntimeFailure {
            blueprint: blueprint.to_string(),
            device: caps.device.clone(),
            message: format!("{e:?}"),
        })
    })
}

/// Units of a cube for kernels whose units are independent: all cores on the CPU JIT, a few
/// planes elsewhere.
pub fn cube_units(caps: &Caps) -> usize {
    (caps.units_per_cube as usize).clamp(1, 128)
}
