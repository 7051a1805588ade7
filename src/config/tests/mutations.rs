//! Damaged files: whatever happens to a config, the answer is a valid config or an error that names something.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{FILES, MoeConfig};
use crate::error::Error;

/// Reads `text`; an accepted config must be valid, countable and stable, an error must be of the promised kinds.
fn read(text: &str) -> Result<Option<MoeConfig>, TestCaseError> {
    match MoeConfig::from_hf_json(text) {
        Ok(config) => {
            prop_assert_eq!(config.validate(), Ok(()));
            prop_assert!(config.moe_layers().count() > 0);
            prop_assert!(config.layer_parameters().is_ok() && config.routed_parameters().is_ok());
            prop_assert!(config.pair_flops().is_ok());
            Ok(Some(config))
        }
        Err(Error::Config { field, value, allowed }) => {
            prop_assert!(!field.is_empty() && !value.is_empty() && !allowed.is_empty());
            Ok(None)
        }
        Err(Error::Input { .. }) => Ok(None),
        Err(other) => Err(TestCaseError::fail(format!("unexpected kind of error: {other}"))),
    }
}

fn fields(file: usize) -> Map<String, Value> {
    serde_json::from_str(FILES[file].1).unwrap()
}

/// Numbers at the edges, and one value of every other type.
fn odd_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        prop::sample::select(vec![
            json!(null),
            json!(true),
            json!(false),
            json!("silu"),
            json!([]),
            json!([0, 1]),
            json!({}),
            json!(-1),
            json!(0.5),
            json!(i32::MAX),
            json!(1_u64 << 31),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(1e308),
        ]),
        (0_u64..70).prop_map(|n| json!(n)),
        any::<u64>().prop_map(|n| json!(n)),
        any::<f64>().prop_map(|x| json!(x)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes(
        file in 0..FILES.len(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..6),
    ) {
        let mut bytes = FILES[file].1.as_bytes().to_vec();
        for (index, byte, kind) in edits {
            let at = index.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => {
                    bytes.remove(at);
                }
            }
        }
        read(&String::from_utf8_lossy(&bytes))?;
    }

    #[test]
    fn changed_digits(file in 0..FILES.len(), which in any::<prop::sample::Index>(), digit in b'0'..=b'9') {
        let mut bytes = FILES[file].1.as_bytes().to_vec();
        let digits: Vec<usize> = (0..bytes.len()).filter(|&i| bytes[i].is_ascii_digit()).collect();
        bytes[digits[which.index(digits.len())]] = digit;
        read(&String::from_utf8_lossy(&bytes))?;
    }

    #[test]
    fn cut_off(file in 0..FILES.len(), end in any::<prop::sample::Index>()) {
        let text = FILES[file].1.trim_end();
        let text: String = text.chars().take(end.index(text.len())).collect();
        prop_assert_eq!(read(&text)?, None);
    }

    #[test]
    fn deleted_fields(file in 0..FILES.len(), keep in prop::collection::vec(prop::bool::weighted(0.9), 60)) {
        let mut keep = keep.into_iter().chain(std::iter::repeat(true));
        let mut fields = fields(file);
        fields.retain(|_, _| keep.next().unwrap_or(true));
        read(&Value::Object(fields).to_string())?;
    }

    #[test]
    fn replaced_values(
        file in 0..FILES.len(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), odd_value()), 1..4),
    ) {
        let mut fields = fields(file);
        for (index, value) in edits {
            let key = fields.keys().nth(index.index(fields.len())).cloned().unwrap();
            fields.insert(key, value);
        }
        read(&Value::Object(fields).to_string())?;
    }

    #[test]
    fn fields_of_other_files(a in 0..FILES.len(), b in 0..FILES.len()) {
        let mut fields = fields(a);
        for (field, value) in self::fields(b) {
            fields.entry(field).or_insert(value);
        }
        read(&Value::Object(fields).to_string())?;
    }

    #[test]
    fn validate_takes_any_fields(
        sizes in prop::array::uniform4(prop_oneof![0..70_usize, any::<usize>()]),
        groups in prop::array::uniform2(prop_oneof![0..9_usize, any::<usize>()]),
        layers in prop::array::uniform3(prop_oneof![0..9_usize, any::<usize>()]),
        mlp_only_layers in prop::collection::vec(0..12_usize, 0..4),
        factor in any::<f64>(),
    ) {
        let [hidden, width, experts, k] = sizes;
        let [num_hidden_layers, first_k_dense_replace, decoder_sparse_step] = layers;
        let config = MoeConfig {
            n_group: groups[0], topk_group: groups[1], routed_scaling_factor: factor, num_hidden_layers,
            first_k_dense_replace, decoder_sparse_step, mlp_only_layers,
            ..MoeConfig::new(hidden, width, experts, k)
        };
        if config.validate().is_ok() {
            prop_assert!(config.num_experts.checked_rem(config.n_group) == Some(0) && config.topk_group <= config.n_group);
            prop_assert!(config.num_experts_per_tok <= config.topk_group * (config.num_experts / config.n_group));
            prop_assert!(config.layer_parameters().is_ok() && config.routed_parameters().is_ok());
        }
    }
}
