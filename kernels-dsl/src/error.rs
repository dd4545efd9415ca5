//! What can go wrong, in the three kinds a caller reacts to differently.

use crate::launch::DType;

/// Any failure of a launch: the caller's ([`InvalidProblem`]), the device's
/// ([`NotAvailable`]), or the driver's and compiler's ([`RuntimeFailure`]).
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The arguments contradict each other or the definition of the operation.
    #[error(transparent)]
    InvalidProblem(#[from] InvalidProblem),
    /// The device, or the blueprint the policy asks for, lacks something the problem needs.
    #[error(transparent)]
    NotAvailable(#[from] NotAvailable),
    /// The compiler or the driver refused a kernel that selection thought possible.
    #[error(transparent)]
    Runtime(#[from] RuntimeFailure),
}

/// A mistake in the caller's arguments; names the tensor or option, the value and the limit.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidProblem {
    /// Two tensors disagree about the size of an axis.
    #[error("{tensor}: axis {axis} is {found}, expected {expected}")]
    Shape {
        /// Tensor whose axis is wrong.
        tensor: &'static str,
        /// Name of the axis (b, h_q, s_kv, ...).
        axis: &'static str,
        /// Size found.
        found: usize,
        /// Size required by the other tensors.
        expected: usize,
    },
    /// Query heads cannot be shared out evenly over key/value heads.
    #[error("h_q = {h_q} is not a multiple of h_kv = {h_kv}")]
    HeadGroups {
        /// Query heads.
        h_q: usize,
        /// Key/value heads.
        h_kv: usize,
    },
    /// The innermost axis is not contiguous.
    #[error("{tensor}: the stride of the last axis is {stride}, it must be 1")]
    NotContiguous {
        /// Tensor at fault.
        tensor: &'static str,
        /// Stride found, in elements.
        stride: usize,
    },
    /// A view reaches past the end of its buffer.
    #[error("{tensor}: the view needs {needed} elements, its buffer holds {available}")]
    OutOfBounds {
        /// Tensor at fault.
        tensor: &'static str,
        /// Elements that the shape, strides and offset reach.
        needed: usize,
        /// Elements of the buffer.
        available: usize,
    },
    /// An output view names one element twice.
    #[error("{tensor}: axis {axis} has stride {stride} and would be written more than once")]
    OverlappingOutput {
        /// Tensor at fault.
        tensor: &'static str,
        /// Axis whose stride is too small.
        axis: usize,
        /// The stride, in elements.
        stride: usize,
    },
    /// A dtype differs from what the operation takes.
    #[error("{tensor}: dtype {found}, expected {expected}")]
    Dtype {
        /// Tensor at fault.
        tensor: &'static str,
        /// Dtype found.
        found: DType,
        /// Dtypes allowed.
        expected: String,
    },
    /// An operand's format differs from what the product takes.
    #[error("{tensor}: {found}, expected {expected}")]
    Format {
        /// Operand at fault.
        tensor: &'static str,
        /// Format or grouping found.
        found: String,
        /// What goes with the others.
        expected: String,
    },
    /// A scalar must be finite.
    #[error("{name} = {value} is not finite")]
    NotFinite {
        /// Option at fault.
        name: &'static str,
        /// Its value.
        value: f32,
    },
    /// A scalar or size lies outside its range.
    #[error("{name} = {value} is out of range, the limit is {limit}")]
    OutOfRange {
        /// Option at fault.
        name: &'static str,
        /// Its value.
        value: i128,
        /// The limit it breaks.
        limit: i128,
    },
    /// A size must be a power of two.
    #[error("{name} = {value} is not a power of two")]
    NotPowerOfTwo {
        /// Size at fault.
        name: &'static str,
        /// Its value.
        value: usize,
    },
    /// An entry of a table of lengths, group indices or the like is out of range.
    #[error("{name}[{index}] = {value} is out of range, the limit is {limit}")]
    Entry {
        /// Table at fault.
        name: &'static str,
        /// Position in the table.
        index: usize,
        /// Value found.
        value: usize,
        /// Largest value allowed.
        limit: usize,
    },
    /// Two options contradict each other.
    #[error("{option} cannot be combined with {with}")]
    Conflict {
        /// Option at fault.
        option: &'static str,
        /// The one it excludes.
        with: &'static str,
    },
    /// A table has the wrong number of entries.
    #[error("{name} has {found} entries, expected {expected}")]
    Entries {
        /// Table at fault.
        name: &'static str,
        /// Entries found.
        found: usize,
        /// Entries required.
        expected: usize,
    },
}

/// Something the device or the requested tier lacks; names the limit and the value.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{what} not available on {device}: {limit} is {available}, the problem needs {needed}")]
pub struct NotAvailable {
    /// The kernel, dtype or tier that cannot be had.
    pub what: String,
    /// The device asked.
    pub device: String,
    /// Name of the limit.
    pub limit: &'static str,
    /// What the problem needs of it.
    pub needed: String,
    /// What the device has.
    pub available: String,
}

/// The compiler or driver failed; carries its own words.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{blueprint} failed on {device}: {message}")]
pub struct RuntimeFailure {
    /// Blueprint that was launched.
    pub blueprint: String,
    /// Device it ran on.
    pub device: String,
    /// The compiler's or driver's message.
    pub message: String,
}
