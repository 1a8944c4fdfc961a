//! A plan under construction: the steps so far with their kernels, and the tiled sections; and the interface
//! through which an operation adds its steps to it.

use super::measure::Bench;
use super::needs::LayoutNeeds;
use super::timed_plan::{BuildOptions, TimedPlan, is_hopeless, prepare_error};
use crate::native::elementwise::CpuContext;
use crate::onednn::OneDnn;
use crate::ops::{KernelBuilder, NativeStep, StepOperands};
use std::time::Duration;
use stratus_engine::ops::KernelSpec;
use stratus_engine::program::Mode;
use stratus_engine::{
    Choices, EngineError, Kernel, Layout, PrepareRequest, PreparedProgram, PreparedStep, Program, Section,
    Step,
};

/// Properties of a step that runs on oneDNN, for planning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneDnnUse {
    /// True if it is a pass of a convolution.
    pub is_convolution: bool,
    /// True if its channels fill the tiles of AMX, which is then several times faster than everything else.
    pub fills_amx_tiles: bool,
}

/// The CPU implementation of an engine kernel.
///
/// Most kernels implement only [`build`](Self::build): one native kernel for feature maps in any layout.
/// Kernels with several candidates, and those that decide the layouts of weights, implement
/// [`prepare`](Self::prepare).
pub(crate) trait CpuOp {
    /// Builds the native kernel for operands whose shapes
    /// [`KernelSpec::check`](stratus_engine::ops::KernelSpec::check) has checked.
    ///
    /// # Errors
    /// If these types or layouts are not supported.
    fn build(&self, _operands: &StepOperands, _cpu: &CpuContext) -> Result<NativeStep, String> {
        Err("no native kernel; it runs on oneDNN".to_owned())
    }

    /// Adds `step`, whose kernel this is, to the plan, with the layout changes it needs.
    ///
    /// # Errors
    /// If it cannot be run.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let measure = plan.compares_map_layouts();
        plan.add_native(step.clone(), measure)
    }

    /// Marks the operands that do not simply take the plan's layout of feature maps.
    fn layouts(&self, _step: &Step, _needs: &mut LayoutNeeds) {}

    /// Its use of oneDNN, if it runs there.
    fn onednn_use(&self) -> Option<OneDnnUse> {
        None
    }
}

/// Finds the operation of an engine kernel.
pub(crate) type OpLookup = fn(&Kernel) -> &dyn CpuOp;

/// Builds the plan of one program for one layout of feature maps.
pub(crate) struct PlanBuilder<'a> {
    pub(super) backend: &'a OneDnn,
    pub(super) ops: OpLookup,
    pub(super) kernel_builder: KernelBuilder<'a>,
    pub(super) request: &'a PrepareRequest,
    pub(super) options: BuildOptions,
    pub(super) source: &'a Program,
    /// The values of the source and those added to it; the steps so far.
    pub(super) program: Program,
    /// The layout per value, once decided.
    pub(super) layouts: Vec<Option<Layout>>,
    steps: Vec<PreparedStep>,
    pub(super) choices: Choices,
    pub(super) bench: &'a mut Bench,
    /// The measured time of the steps so far.
    pub(super) time: Duration,
    /// The number of tiles of the batch in the current step.
    pub(super) tiles: usize,
    section: Option<OpenSection>,
}

/// A section whose steps are being prepared.
struct OpenSection {
    /// The section of the source, but `first` is a position in the plan: it moves when a step is inserted
    /// before the section. `count` is set at the end.
    section: Section,
    /// True if an exchange with other workers starts in the section, when the last part has completed a sum.
    exchanges: bool,
    /// Reorders of the sums over tiles, to be pushed after the section.
    after_section: Vec<(Step, PreparedStep)>,
}

impl<'a> PlanBuilder<'a> {
    pub(super) fn new(
        backend: &'a OneDnn,
        ops: OpLookup,
        source: &'a Program,
        request: &'a PrepareRequest,
        bench: &'a mut Bench,
        options: BuildOptions,
    ) -> Result<Self, EngineError> {
        let attributes = |relu| backend.context.attributes(relu).map_err(prepare_error);
        let kernel_builder = KernelBuilder {
            onednn: &backend.context,
            cpu: &backend.cpu,
            plain: attributes(false)?,
            relu: attributes(true)?,
            required: None,
        };
        let mut program = source.clone();
        program.steps.clear();
        program.sections.clear();
        Ok(Self {
            backend,
            ops,
            kernel_builder,
            request,
            options,
            source,
            layouts: vec![None; program.values.len()],
            program,
            steps: Vec::new(),
            choices: Choices::default(),
            bench,
            time: Duration::ZERO,
            tiles: 1,
            section: None,
        })
    }

    /// Lays out feature maps and prepares all steps. Stops early when the plan can no longer beat
    /// `incumbent`, the step times of another.
    pub(super) fn build(
        mut self,
        map_layout: &str,
        incumbent: Option<&[Duration]>,
    ) -> Result<TimedPlan, EngineError> {
        self.lay_out_maps(map_layout)?;
        let source = self.source;
        let mut times = Vec::with_capacity(source.steps.len());
        let mut abandoned = false;
        for (position, step) in source.steps.iter().enumerate() {
            if self.request.measure {
                self.backend.monitor.report_or_stop(|| {
                    let layer = source.layer_name(step);
                    format!("measuring kernels, step {} of {}: {layer}", position + 1, source.steps.len())
                })?;
            }
            self.open_section(position);
            self.add(step).map_err(|reason| EngineError::Unsupported {
                backend: "onednn".to_owned(),
                kernel: step.kernel.name().to_owned(),
                layer: source.layer_name(step),
                reason,
            })?;
            times.push(self.time);
            abandoned = incumbent.is_some_and(|incumbent| is_hopeless(self.time, position, incumbent));
            if abandoned {
                break;
            }
        }
        self.close_section();
        let layouts = self
            .layouts
            .into_iter()
            .zip(&self.program.values)
            .map(|(layout, value)| layout.unwrap_or_else(|| Layout::plain(&value.shape)))
            .collect();
        let prepared =
            PreparedProgram { program: self.program, layouts, steps: self.steps, choices: self.choices };
        Ok(TimedPlan { prepared, times, abandoned })
    }

    /// The builder of candidates.
    pub(crate) fn kernel_builder(&self) -> &KernelBuilder<'a> {
        &self.kernel_builder
    }

    /// Returns whether this is a training program.
    pub(crate) fn trains(&self) -> bool {
        self.source.mode == Mode::Train
    }

    /// Returns whether native kernels on maps are measured, which is needed to compare plans in several
    /// layouts of maps.
    pub(crate) fn compares_map_layouts(&self) -> bool {
        self.options.measure_maps && self.request.measure
    }

    /// Opens and closes sections as required by the source's step at `position`.
    fn open_section(&mut self, position: usize) {
        let section = self.source.section_of(position);
        if section.is_none_or(|section| section.first == position) {
            self.close_section();
        }
        self.tiles = section.map_or(1, |section| section.tiles);
        if let (Some(section), None) = (section, &self.section) {
            let mut steps = self.source.steps[section.steps()].iter();
            let exchanges = steps.any(|step| matches!(step.kernel, Kernel::AllReduceBucket(_)));
            let section = Section { first: self.program.steps.len(), ..*section };
            self.section = Some(OpenSection { section, exchanges, after_section: Vec::new() });
        }
    }

    fn close_section(&mut self) {
        let Some(OpenSection { section, after_section, .. }) = self.section.take() else { return };
        let count = self.program.steps.len() - section.first;
        self.program.sections.push(Section { count, ..section });
        for (step, kernel) in after_section {
            self.push(step, kernel);
        }
    }

    /// Adds a prepared step.
    pub(crate) fn push(&mut self, step: Step, kernel: PreparedStep) {
        self.program.steps.push(step);
        self.steps.push(kernel);
    }

    /// Adds a step that runs once, before the current section.
    pub(super) fn push_before_section(&mut self, step: Step, kernel: PreparedStep) {
        let Some(OpenSection { section, .. }) = &mut self.section else { return self.push(step, kernel) };
        self.program.steps.insert(section.first, step);
        self.steps.insert(section.first, kernel);
        section.first += 1;
    }

    /// Adds the reorder of a sum over micro-batches: once, after the current section, or in it if the sum is
    /// exchanged there.
    pub(crate) fn push_reorder_of_sum(&mut self, step: Step, kernel: PreparedStep) {
        match &self.section {
            Some(section) if section.exchanges => self.push(step, kernel),
            _ => self.push_after_section(step, kernel),
        }
    }

    /// Adds a step that runs once, after the current section.
    pub(crate) fn push_after_section(&mut self, step: Step, kernel: PreparedStep) {
        match &mut self.section {
            Some(section) => section.after_section.push((step, kernel)),
            None => self.push(step, kernel),
        }
    }
}
