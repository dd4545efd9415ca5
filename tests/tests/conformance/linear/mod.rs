//! Products with packed weights beside the catalogue: repacking on the device, selection, bad input.

mod bad;
mod repack;
mod select;

use super::{invalid, selection};
