//! The body of a bind call.

use aliquot_k8s::extender::{ExtenderBindingArgs, ExtenderBindingResult};

/// Decodes the bytes as the arguments and as the answer of bind.
pub fn check(input: &[u8]) {
    if let Ok(args) = serde_json::from_slice::<ExtenderBindingArgs>(input) {
        let text = serde_json::to_vec(&args).expect("what was read can be written");
        assert_eq!(
            serde_json::from_slice::<ExtenderBindingArgs>(&text).ok(),
            Some(args)
        );
    }
    if let Ok(answer) = serde_json::from_slice::<ExtenderBindingResult>(input) {
        let text = serde_json::to_vec(&answer).expect("what was read can be written");
        assert_eq!(
            serde_json::from_slice::<ExtenderBindingResult>(&text).ok(),
            Some(answer)
        );
    }
}
