//! The CPU backend of the engine.

use crate::onednn::OneDnn;
use crate::ops::on_cpu;
use crate::prepare::prepare;
use stratus_engine::{Backend, EngineError, Precision, PrepareRequest, PreparedProgram, Program};

impl Backend for OneDnn {
    fn name(&self) -> &'static str {
        "onednn"
    }

    fn describe(&self) -> String {
        format!("oneDNN {} {}, {} threads", self.version(), self.context.instruction_set(), self.threads())
    }

    fn revision(&self) -> &'static str {
        env!("STRATUS_KERNELS")
    }

    fn threads(&self) -> usize {
        self.cpu.team.threads()
    }

    fn precisions(&self) -> Vec<Precision> {
        [Precision::F32, Precision::Bf16].into_iter().filter(|&precision| self.supports(precision)).collect()
    }

    fn max_int8_weight(&self) -> Option<i8> {
        // Without VNNI two products are added in sixteen bits, which hold 2 * 63 * 255 but not 2 * 127 * 255.
        const WITHOUT_VNNI: i8 = 63;
        Some(if self.context.has_int8_products() { i8::MAX } else { WITHOUT_VNNI })
    }

    fn prefers_tiling(&self) -> bool {
        true
    }

    fn prepare(&self, program: &Program, request: &PrepareRequest) -> Result<PreparedProgram, EngineError> {
        self.cpu.team.apply_thread_count();
        prepare(self, on_cpu, program, request)
    }
}
