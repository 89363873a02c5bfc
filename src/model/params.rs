//! The canonical, ordered list of a decoder's parameters and of the places where a LoRA adapter can sit.
//!
//! Everything that walks over weights (import, full fine-tuning, optimiser state, checkpoints) uses this order and
//! these names; nothing else in the project spells a tensor name.

use crate::model::config::DecoderConfig;

/// One base parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Param {
    /// (V, D)
    Embed,
    Layer(usize, LayerParam),
    /// (1, D)
    FinalNorm,
    /// (V, D); only where the embeddings are not tied.
    Head,
}

/// A parameter of one layer. Matrices are (out, in), vectors (1, n).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerParam {
    InputNorm,
    Q,
    K,
    V,
    QBias,
    KBias,
    VBias,
    QNorm,
    KNorm,
    O,
    PostNorm,
    Gate,
    Up,
    Down,
}

/// A linear map inside a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Proj {
    Q,
    K,
    V,
    O,
    Gate,
    Up,
    Down,
}

/// A linear map that can carry an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site {
    Layer(usize, Proj),
    /// The output head, also where it shares the embedding matrix.
    Head,
}

impl Param {
    /// Every parameter this decoder has, in canonical order.
    pub fn all(c: &DecoderConfig) -> Vec<Self> {
        let mut all = vec![Self::Embed];
        for layer in 0..c.num_layers {
            all.extend(LayerParam::all(c).map(|p| Self::Layer(layer, p)));
        }
        all.push(Self::FinalNorm);
        if !c.tied_embeddings {
            all.push(Self::Head);
        }
        all
    }

    /// (rows, cols); a vector of n is (1, n).
    pub fn shape(self, c: &DecoderConfig) -> (usize, usize) {
        match self {
            Self::Embed | Self::Head => (c.vocab_size, c.hidden_size),
            Self::FinalNorm => (1, c.hidden_size),
            Self::Layer(_, p) => p.shape(c),
        }
    }

    pub fn num_elements(self, c: &DecoderConfig) -> usize {
        let (rows, cols) = self.shape(c);
        rows * cols
    }

    /// True for norms and biases, which model files store with one dimension.
    pub fn is_vector(self) -> bool {
        match self {
            Self::Embed | Self::Head => false,
            Self::FinalNorm => true,
            Self::Layer(_, p) => p.is_vector(),
        }
    }

    /// The shape in a model file: `[rows, cols]`, or `[n]` for a vector.
    pub fn file_shape(self, c: &DecoderConfig) -> Vec<usize> {
        let (rows, cols) = self.shape(c);
        if self.is_vector() { vec![cols] } else { vec![rows, cols] }
    }

    /// The tensor's name in a Transformers model file.
    pub fn hf_name(self) -> String {
        match self {
            Self::Embed => "model.embed_tokens.weight".into(),
            Self::FinalNorm => "model.norm.weight".into(),
            Self::Head => "lm_head.weight".into(),
            Self::Layer(layer, p) => format!("model.layers.{layer}.{}", p.hf_suffix()),
        }
    }
}

impl LayerParam {
    /// The parameters of each layer, in canonical order.
    pub fn all(c: &DecoderConfig) -> impl Iterator<Item = Self> + use<> {
        use LayerParam::*;
        let (bias, norm) = (c.qkv_bias, c.qk_norm);
        [InputNorm, Q, K, V, QBias, KBias, VBias, QNorm, KNorm, O, PostNorm, Gate, Up, Down].into_iter().filter(
            move |p| match p {
                QBias | KBias | VBias => bias,
                QNorm | KNorm => norm,
                _ => true,
            },
        )
    }

    /// (rows, cols); a vector of n is (1, n).
    pub fn shape(self, c: &DecoderConfig) -> (usize, usize) {
        match self {
            Self::InputNorm | Self::PostNorm => (1, c.hidden_size),
            Self::Q => (c.q_size(), c.hidden_size),
            Self::K | Self::V => (c.kv_size(), c.hidden_size),
            Self::QBias => (1, c.q_size()),
            Self::KBias | Self::VBias => (1, c.kv_size()),
            Self::QNorm | Self::KNorm => (1, c.head_dim),
            Self::O => (c.hidden_size, c.q_size()),
            Self::Gate | Self::Up => (c.intermediate_size, c.hidden_size),
            Self::Down => (c.hidden_size, c.intermediate_size),
        }
    }

    fn is_vector(self) -> bool {
        use LayerParam::*;
        matches!(self, InputNorm | PostNorm | QBias | KBias | VBias | QNorm | KNorm)
    }

    fn hf_suffix(self) -> &'static str {
        match self {
            Self::InputNorm => "input_layernorm.weight",
            Self::Q => "self_attn.q_proj.weight",
            Self::K => "self_attn.k_proj.weight",
            Self::V => "self_attn.v_proj.weight",
            Self::QBias => "self_attn.q_proj.bias",
            Self::KBias => "self_attn.k_proj.bias",
            Self::VBias => "self_attn.v_proj.bias",
            Self::QNorm => "self_attn.q_norm.weight",
            Self::KNorm => "self_attn.k_norm.weight",
            Self::O => "self_attn.o_proj.weight",
            Self::PostNorm => "post_attention_layernorm.weight",
            Self::Gate => "mlp.gate_proj.weight",
            Self::Up => "mlp.up_proj.weight",
            Self::Down => "mlp.down_proj.weight",
        }
    }
}

impl Proj {
    pub const ATTENTION: [Self; 4] = [Self::Q, Self::K, Self::V, Self::O];
    pub const MLP: [Self; 3] = [Self::Gate, Self::Up, Self::Down];
    /// Projections per layer; `p as usize` counts through them.
    pub const COUNT: usize = 7;

    /// The base matrix this projection multiplies with.
    pub fn param(self) -> LayerParam {
        match self {
            Self::Q => LayerParam::Q,
            Self::K => LayerParam::K,
            Self::V => LayerParam::V,
            Self::O => LayerParam::O,
            Self::Gate => LayerParam::Gate,
            Self::Up => LayerParam::Up,
            Self::Down => LayerParam::Down,
        }
    }

    /// Its bias vector, where this decoder has one.
    pub fn bias(self, c: &DecoderConfig) -> Option<LayerParam> {
        match self {
            _ if !c.qkv_bias => None,
            Self::Q => Some(LayerParam::QBias),
            Self::K => Some(LayerParam::KBias),
            Self::V => Some(LayerParam::VBias),
            _ => None,
        }
    }
}

impl Site {
    /// The sites that the three switches choose, in canonical order: layer by layer q k v o gate up down, then the head.
    pub fn chosen(c: &DecoderConfig, attn: bool, mlp: bool, unembed: bool) -> Vec<Self> {
        let mut sites = Vec::new();
        for layer in 0..c.num_layers {
            if attn {
                sites.extend(Proj::ATTENTION.map(|p| Self::Layer(layer, p)));
            }
            if mlp {
                sites.extend(Proj::MLP.map(|p| Self::Layer(layer, p)));
            }
        }
        if unembed {
            sites.push(Self::Head);
        }
        sites
    }

    /// Number of sites of a decoder.
    pub fn count(c: &DecoderConfig) -> usize {
        c.num_layers * Proj::COUNT + 1
    }

    /// Position in the list of all sites, whatever is chosen.
    pub fn index(self, c: &DecoderConfig) -> usize {
        match self {
            Self::Layer(layer, p) => layer * Proj::COUNT + p as usize,
            Self::Head => c.num_layers * Proj::COUNT,
        }
    }

    /// (in, out) of the base matrix: A is (rank, in), B is (out, rank).
    pub fn sizes(self, c: &DecoderConfig) -> (usize, usize) {
        let (rows, cols) = match self {
            Self::Layer(_, p) => p.param().shape(c),
            Self::Head => Param::Head.shape(c),
        };
        (cols, rows)
    }

    /// The module's path in the Transformers model: `model.layers.3.self_attn.q_proj`, `lm_head`.
    pub fn module(self) -> String {
        let param = match self {
            Self::Layer(layer, p) => Param::Layer(layer, p.param()),
            Self::Head => Param::Head,
        };
        let name = param.hf_name();
        name.strip_suffix(".weight").expect("a projection's tensor is a weight").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::tests::tiny;

    #[test]
    fn all_lists_optional_parameters_only_where_the_decoder_has_them() {
        let mut c = tiny();
        assert_eq!(Param::all(&c).len(), 1 + 2 * 9 + 1 + 1);
        c.tied_embeddings = true;
        c.qk_norm = true;
        assert_eq!(Param::all(&c).len(), 1 + 2 * 11 + 1);
        c.qkv_bias = true;
        assert_eq!(Param::all(&c).len(), 1 + 2 * 14 + 1);
        assert!(!Param::all(&c).contains(&Param::Head));
    }

    #[test]
    fn names_and_shapes_follow_the_model_file() {
        let c = tiny();
        let q = Param::Layer(1, LayerParam::Q);
        assert_eq!((q.hf_name().as_str(), q.shape(&c)), ("model.layers.1.self_attn.q_proj.weight", (24, 8)));
        let k = Param::Layer(0, LayerParam::K);
        assert_eq!((k.hf_name().as_str(), k.file_shape(&c)), ("model.layers.0.self_attn.k_proj.weight", vec![12, 8]));
        let n = Param::Layer(0, LayerParam::PostNorm);
        assert_eq!(n.hf_name(), "model.layers.0.post_attention_layernorm.weight");
        assert_eq!((n.shape(&c), n.file_shape(&c)), ((1, 8), vec![8]));
        assert_eq!(Param::Head.file_shape(&c), vec![16, 8]);
    }

    #[test]
    fn sites_keep_their_index_whatever_is_chosen() {
        let c = tiny();
        let all = Site::chosen(&c, true, true, true);
        assert_eq!(all.len(), Site::count(&c));
        assert!(all.iter().enumerate().all(|(i, s)| s.index(&c) == i));
        let mlp = Site::chosen(&c, false, true, false);
        assert_eq!(mlp.iter().map(|s| s.index(&c)).collect::<Vec<_>>(), [4, 5, 6, 11, 12, 13]);
        assert_eq!(Site::chosen(&c, false, false, true), [Site::Head]);
    }

    #[test]
    fn a_site_names_its_module_and_sizes() {
        let c = tiny();
        assert_eq!(Site::Layer(1, Proj::Down).module(), "model.layers.1.mlp.down_proj");
        assert_eq!(Site::Layer(1, Proj::Down).sizes(&c), (20, 8));
        assert_eq!(Site::Layer(0, Proj::O).sizes(&c), (24, 8));
        assert_eq!((Site::Head.module().as_str(), Site::Head.sizes(&c)), ("lm_head", (8, 16)));
    }
}
