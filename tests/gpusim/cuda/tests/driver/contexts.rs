//! Which devices a process sees.
//!
//! Facts of: CUDA Programming Guide, `CUDA_VISIBLE_DEVICES`.

use crate::client::*;
use crate::common::on_machine_with;

#[test]
fn enumerates_only_visible_devices() {
    const YAML: &str = "gpus: [{count: 2, model: Tesla T4, uuids: [GPU-a, GPU-b]}]";
    let check = |given: &str, chosen: &str, expected: Result<i32, u32>| {
        let environment = [
            ("NVIDIA_VISIBLE_DEVICES", given),
            ("CUDA_VISIBLE_DEVICES", chosen),
        ];
        let wanted = format!("{expected:?}");
        let environment = [&environment[..], &[("EXPECTED", wanted.as_str())]].concat();
        on_machine_with(YAML, &environment, |_| {
            let cuda = Cuda::open();
            let found = match call!(cuda, cuInit(u32: 0)) {
                OK => {
                    let mut count = 0;
                    ok!(cuda, cuDeviceGetCount(*mut i32: &raw mut count));
                    Ok(count)
                }
                code => Err(code),
            };
            assert_eq!(format!("{found:?}"), std::env::var("EXPECTED").unwrap());
        });
    };
    check("all", "0,1", Ok(2));
    if std::env::var_os("EXPECTED").is_some() {
        return;
    }
    check("GPU-b", "0", Ok(1));
    check("GPU-b", "GPU-a", Err(NO_DEVICE));
    check("all", "1,7,0", Ok(1));
    check("all", "", Err(NO_DEVICE));
    check("void", "0", Err(NO_DEVICE));
}
