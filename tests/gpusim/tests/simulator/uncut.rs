//! What a card could be cut into is told while MIG is off, too.

use nvml_wrapper_sys::bindings::*;

use crate::client::*;
use crate::common::on_machine;

/// The driver id of 3g.20gb.
const THREE: u32 = 9;

#[test]
fn lists_placements_while_mig_is_off() {
    let name = "uncut::lists_placements_while_mig_is_off";
    on_machine(name, "gpus: [{model: NVIDIA A100-SXM4-40GB}]", |_| {
        let library = opened();
        let device = card(&library, 0);
        let none = nvmlGpuInstancePlacement_t { start: 0, size: 0 };
        let (mut places, mut count) = ([none; 8], 8);
        let (list, number) = (places.as_mut_ptr(), &raw mut count);
        let code = call!(
            library,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2,
            device,
            THREE,
            list,
            number
        );
        assert_eq!(code, OK);
        let starts: Vec<u32> = places.iter().take(2).map(|place| place.start).collect();
        assert_eq!((count, starts), (2, vec![0, 4]));
        // What there is room for now is nothing that can be asked.
        let mut left = 0;
        let left = &raw mut left;
        let code = call!(
            library,
            nvmlDeviceGetGpuInstanceRemainingCapacity,
            device,
            THREE,
            left
        );
        assert_eq!(code, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
    });
}
