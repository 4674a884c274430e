//! HAMi's annotations: what its scheduler allocated to a pod, and a node's devices. What we
//! write reads back the same.

use std::collections::BTreeMap;

use aliquot_core::{Allocation, Grant, Stage, hami};

/// Reads the text as both annotations.
pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(inventory) = hami::register(text) {
        assert!(inventory.encode().is_ok(), "what was read can be written");
    }
    let stages = [Stage::Init, Stage::Sidecar, Stage::App];
    let containers = match hami::decode(text) {
        Ok(containers) => containers,
        Err(why) => {
            assert!(hami::uses(text, &stages).is_err(), "{why}");
            return;
        }
    };
    let names: Vec<String> = (0..containers.len()).map(|n| format!("{n:09}")).collect();
    let grants = containers.iter().map(|shares| {
        let shares = shares.iter().map(|share| Grant {
            resource: "nvidia.com/gpu".to_owned(),
            gpu: share.gpu.clone(),
            memory: share.memory,
            cores: share.cores,
            replicas: 1,
            burst: None,
            mig: None,
        });
        shares.collect()
    });
    let allocation = Allocation {
        v: 1,
        node: "n1".into(),
        containers: names.iter().cloned().zip(grants).collect(),
        init: BTreeMap::new(),
        priority: 1,
    };
    let again = hami::encode(&allocation, names.iter().map(String::as_str));
    assert_eq!(hami::decode(&again).as_ref(), Ok(&containers), "{again:?}");
}
