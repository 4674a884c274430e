//! HAMi 4.11: the annotation with what is allocated.

use crate::allocation::{Allocation, Grant};
use crate::hami::encode;
use crate::units::{Mib, Percent};

#[test]
fn writes_allocation_in_order_of_containers() {
    let grant = |gpu: &str, memory| Grant {
        resource: "nvidia.com/gpu".to_owned(),
        gpu: gpu.into(),
        memory: Mib(memory),
        cores: Percent(30),
        replicas: 1,
        burst: None,
        mig: None,
    };
    let allocation = Allocation {
        v: 1,
        node: "n".into(),
        containers: [("a".to_owned(), vec![grant("GPU-0", 1), grant("GPU-1", 2)])].into(),
        init: [("z".to_owned(), vec![grant("GPU-0", 9)])].into(),
        priority: 1,
    };
    let text = encode(&allocation, ["z", "none", "a"].into_iter());
    assert_eq!(
        text,
        "GPU-0,NVIDIA,9,30:;;GPU-0,NVIDIA,1,30:GPU-1,NVIDIA,2,30:;"
    );
}
