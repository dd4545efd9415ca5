//! A case: sizes and options of one attention problem.

use flashcube_reference::Alignment;
use serde_json::{Value, json};

/// How q, k and v are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Values {
    /// Standard normal.
    Normal,
    /// q and k normal, times the factor: scores of about factor^2.
    Large(f64),
    /// One value in a thousand ten times as large (FlashAttention-3, section 4.3).
    Outliers,
    /// v_j holds the index j in its first channel.
    Indexed,
}

/// Which axes of a [b, h_q, s_q, s_kv] operand are full; the others have size 1.
pub(crate) type Full = [bool; 4];

/// One problem; what is not `Some` or true is absent.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// What the case is there for.
    pub(crate) name: &'static str,
    /// b, h_q, h_kv, s_q, s_kv, d, d_v.
    pub(crate) sizes: [usize; 7],
    /// 1 / sqrt(d) if absent.
    pub(crate) scale: Option<f64>,
    pub(crate) softcap: Option<f64>,
    pub(crate) causal: bool,
    pub(crate) alignment: Alignment,
    pub(crate) window_left: Option<usize>,
    pub(crate) window_right: Option<usize>,
    pub(crate) alibi: bool,
    pub(crate) bias: Option<Full>,
    pub(crate) mask: Option<Full>,
    pub(crate) lengths: Option<(&'static [usize], &'static [usize])>,
    /// Length of a document in queries and in keys.
    pub(crate) documents: Option<(usize, usize)>,
    /// The loss reads lse too.
    pub(crate) d_lse: bool,
    pub(crate) values: Values,
}

impl Case {
    /// A case without options.
    pub(crate) fn plain(name: &'static str, sizes: [usize; 7]) -> Self {
        Self {
            name,
            sizes,
            scale: None,
            softcap: None,
            causal: false,
            alignment: Alignment::BottomRight,
            window_left: None,
            window_right: None,
            alibi: false,
            bias: None,
            mask: None,
            lengths: None,
            documents: None,
            d_lse: false,
            values: Values::Normal,
        }
    }

    pub(crate) fn scale(&self) -> f64 {
        let d = self.sizes[5] as f64;
        self.scale.unwrap_or(1.0 / d.sqrt())
    }

    /// [b, h_q, s_q, s_kv] of an operand with the given axes full.
    pub(crate) fn pair_shape(&self, full: Full) -> [usize; 4] {
        let [b, h_q, _, s_q, s_kv, ..] = self.sizes;
        let sizes = [b, h_q, s_q, s_kv];
        std::array::from_fn(|axis| if full[axis] { sizes[axis] } else { 1 })
    }

    /// The scalars; the tensors say the rest.
    pub(crate) fn json(&self) -> Value {
        let alignment = match self.alignment {
            Alignment::TopLeft => "top_left",
            Alignment::BottomRight => "bottom_right",
        };
        json!({
            "name": self.name,
            "scale": self.scale(),
            "softcap": self.softcap,
            "causal": self.causal,
            "alignment": alignment,
            "window_left": self.window_left,
            "window_right": self.window_right,
        })
    }
}
