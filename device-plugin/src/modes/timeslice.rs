//! timeslice: containers share a device by NVIDIA's time-slicing, without limits of memory or
//! compute.

use aliquot_nvml::GpuFacts;
use aliquot_profiles::Mode;
use aliquot_profiles::mode::SliceLength;

use super::{ModeError, ModeSwitch};

/// The length of time slices.
pub(super) struct TimesliceSwitch;

impl ModeSwitch for TimesliceSwitch {
    /// NVML has no call that sets the length of time slices: any value but the driver's default is
    /// refused, rather than ignored.
    fn enter(&self, _: &GpuFacts, settings: &Mode) -> Result<(), ModeError> {
        match settings {
            Mode::Timeslice(slices) if slices.slice_length != SliceLength::Default => {
                let accepted =
                    "sliceLength: NVML cannot set the length of time slices; expected: default";
                Err(ModeError::Refused(accepted.to_owned()))
            }
            _ => Ok(()),
        }
    }

    fn leave(&self, _: &GpuFacts, _: &Mode, _: &Mode) -> Result<(), ModeError> {
        Ok(())
    }
}
