//! CUDA C++ whose text depends on the kernel alone.

use std::collections::HashMap;

use crate::cache::sha256_hex;

/// The CUDA C++ of one kernel.
///
/// CubeCL numbers its values by the order in which hash maps hand them out and names a kernel by a hash that differs
/// between builds. Both are renamed here, so that the same kernel gives the same text and the same [`Self::sha256`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaSource {
    /// The entry point's name in [`Self::text`].
    pub kernel: String,
    /// The translation unit.
    pub text: String,
    /// Dynamic shared memory the kernel is launched with, in bytes.
    pub dynamic_smem_bytes: usize,
}

impl CudaSource {
    /// A source whose entry point `kernel` ends in CubeCL's hash, or not; values are renamed and the hash is dropped.
    pub fn new(kernel: &str, text: &str, dynamic_smem_bytes: usize) -> Self {
        let stable = strip_hash(kernel);
        Self {
            kernel: stable.to_owned(),
            text: rename(text, kernel, stable),
            dynamic_smem_bytes,
        }
    }

    /// SHA-256 of the text in hexadecimal: the same for the same kernel, whichever run printed it.
    pub fn sha256(&self) -> String {
        sha256_hex(&self.text)
    }
}

/// `text` with the kernel's hash dropped and its values renamed.
#[cfg(feature = "wgsl")]
pub(crate) fn stable_text(kernel: &str, text: &str) -> String {
    rename(text, kernel, strip_hash(kernel))
}

/// `saxpy` of `saxpy_0123abcd`.
fn strip_hash(kernel: &str) -> &str {
    match kernel.rsplit_once('_') {
        Some((base, hash))
            if !base.is_empty()
                && hash.len() == 8
                && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
        {
            base
        }
        _ => kernel,
    }
}

/// Rewrites the identifiers outside string literals (PTX has words like `v4` too): the kernel's name to `stable`, the
/// number of every value to the order of its first appearance.
fn rename(text: &str, kernel: &str, stable: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut order: HashMap<&str, usize> = HashMap::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = if first == '"' {
            string_end(rest)
        } else if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (token, tail) = rest.split_at(end);
        rest = tail;
        if token == kernel {
            out.push_str(stable);
        } else if let Some((before, number, after)) = split_value(token) {
            let next = order.len();
            let place = *order.entry(number).or_insert(next);
            out.push_str(&format!("{before}{place}{after}"));
        } else {
            out.push_str(token);
        }
    }
    out
}

/// Length of the string literal at the start of `text`, quotes included.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// (`scores_v`, `12`, `_store`) of `scores_v12_store`: CubeCL prints a value as `v` and its number, with the name it was
/// given before and `_store` behind where it lives in memory. Names reserved to the compiler are no values.
fn split_value(word: &str) -> Option<(&str, &str, &str)> {
    if word.starts_with("__") {
        return None;
    }
    let mut start = 0;
    for segment in word.split('_') {
        let end = start + segment.len();
        if let Some(number) = segment.strip_prefix('v')
            && !number.is_empty()
            && number.bytes().all(|byte| byte.is_ascii_digit())
        {
            return Some((&word[..start + 1], number, &word[end..]));
        }
        start = end + 1;
    }
    None
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = r#"extern "C" __global__ void sum_0a1b2c3d(float* in_v7) {
float v30_store; float const v12 = in_v7[0]; v30_store = v12; asm("ld.v4 \" v12 %0;" : "=f"(v12)); __v3(v12 + v12); }"#;
    const TWO: &str = r#"extern "C" __global__ void sum_99999999(float* in_v3) {
float v9_store; float const v5 = in_v3[0]; v9_store = v5; asm("ld.v4 \" v12 %0;" : "=f"(v5)); __v3(v5 + v5); }"#;

    #[test]
    fn values_and_the_kernel_are_renamed_in_order_of_appearance() {
        let source = CudaSource::new("sum_0a1b2c3d", ONE, 0);
        assert_eq!(source.kernel, "sum");
        assert_eq!(
            source.text,
            r#"extern "C" __global__ void sum(float* in_v0) {
float v1_store; float const v2 = in_v0[0]; v1_store = v2; asm("ld.v4 \" v12 %0;" : "=f"(v2)); __v3(v2 + v2); }"#
        );
    }

    #[test]
    fn the_same_kernel_printed_twice_has_one_hash() {
        let one = CudaSource::new("sum_0a1b2c3d", ONE, 0);
        let two = CudaSource::new("sum_99999999", TWO, 0);
        assert_eq!(one.sha256(), two.sha256());
        let other = CudaSource::new("sum_99999999", &TWO.replace("v5 + v5", "v5 - v5"), 0);
        assert_ne!(one.sha256(), other.sha256());
    }

    #[test]
    fn renaming_is_idempotent_and_keeps_plain_names() {
        let once = CudaSource::new("sum_0a1b2c3d", ONE, 0);
        assert_eq!(CudaSource::new("sum", &once.text, 0), once);
        assert_eq!(strip_hash("attend_forward"), "attend_forward");
        for plain in [
            "v",
            "vector_4",
            "i_0",
            "info_st",
            "static_meta",
            "nv12",
            "__v3",
        ] {
            assert_eq!(split_value(plain), None, "{plain}");
        }
        assert_eq!(strip_hash("_0a1b2c3d"), "_0a1b2c3d");
        let open = CudaSource::new("k", "v9 \"never closed v9 \\", 0);
        assert_eq!(open.text, "v0 \"never closed v9 \\");
    }
}
