//! A plan while it is built: the steps so far with their kernels, and the sections that are cut into tiles.

use super::measure::Bench;
use super::{BuildOptions, TimedPlan, is_hopeless, unprepared};
use crate::backend::OneDnn;
use crate::ops::KernelBuilder;
use std::time::Duration;
use stratus_engine::ops::KernelSpec;
use stratus_engine::program::Mode;
use stratus_engine::{
    Choices, EngineError, Layout, PrepareRequest, Prepared, PreparedStep, Program, Section, Step, phases,
};

/// Builds the plan of one program in one layout of feature maps.
pub(crate) struct PlanBuilder<'a> {
    pub(super) backend: &'a OneDnn,
    pub(super) kernel_builder: KernelBuilder<'a>,
    pub(super) request: &'a PrepareRequest,
    pub(super) options: BuildOptions,
    pub(super) source: &'a Program,
    /// The source's values and those that were added; the steps so far.
    pub(super) program: Program,
    /// Per value, where it is decided.
    pub(super) layouts: Vec<Option<Layout>>,
    steps: Vec<PreparedStep>,
    pub(super) choices: Choices,
    pub(super) bench: &'a mut Bench,
    /// The measured time of the steps so far.
    pub(super) time: Duration,
    /// Into how many tiles the batch is cut for the step at hand.
    pub(super) tiles: usize,
    section: Option<OpenSection>,
}

/// A section whose steps are being prepared.
struct OpenSection {
    /// The source's section, but `first` is in the plan: it moves when a step is put before the section.
    /// `count` is set at the end.
    section: Section,
    /// Reorders of what the tiles add up, for behind the section.
    behind: Vec<(Step, PreparedStep)>,
}

impl<'a> PlanBuilder<'a> {
    pub(super) fn new(
        backend: &'a OneDnn,
        source: &'a Program,
        request: &'a PrepareRequest,
        bench: &'a mut Bench,
        map_layout: &str,
        options: BuildOptions,
    ) -> Result<Self, EngineError> {
        let attributes = |relu| backend.context.attributes(relu).map_err(unprepared);
        let kernel_builder = KernelBuilder {
            library: &backend.context,
            cpu: &backend.cpu,
            plain: attributes(false)?,
            relu: attributes(true)?,
            wanted: None,
        };
        let mut program = source.clone();
        program.steps.clear();
        program.sections.clear();
        let mut builder = Self {
            backend,
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
        };
        builder.lay_out_maps(map_layout)?;
        Ok(builder)
    }

    /// Prepares every step, or as many as it takes to see that the plan cannot win against `incumbent`, the
    /// times of another.
    pub(super) fn build(mut self, incumbent: Option<&[Duration]>) -> Result<TimedPlan, EngineError> {
        let source = self.source;
        let mut times = Vec::with_capacity(source.steps.len());
        let mut given_up = false;
        for (position, step) in source.steps.iter().enumerate() {
            if self.request.measure {
                phases::go_on(|| {
                    let layer = source.layer_name(step);
                    format!("measuring kernels, step {} of {}: {layer}", position + 1, source.steps.len())
                })?;
            }
            self.enter(position);
            self.add(step).map_err(|reason| EngineError::Unsupported {
                backend: "onednn".to_owned(),
                kernel: step.kernel.name().to_owned(),
                layer: source.layer_name(step),
                reason,
            })?;
            times.push(self.time);
            given_up = incumbent.is_some_and(|incumbent| is_hopeless(self.time, position, incumbent));
            if given_up {
                break;
            }
        }
        self.leave();
        let layouts = self
            .layouts
            .into_iter()
            .zip(&self.program.values)
            .map(|(layout, value)| layout.unwrap_or_else(|| Layout::plain(&value.shape)))
            .collect();
        let prepared = Prepared { program: self.program, layouts, steps: self.steps, choices: self.choices };
        Ok(TimedPlan { prepared, times, given_up })
    }

    /// What candidates are made with.
    pub(crate) fn kernel_builder(&self) -> &KernelBuilder<'a> {
        &self.kernel_builder
    }

    /// Whether the program trains.
    pub(crate) fn trains(&self) -> bool {
        self.source.mode == Mode::Train
    }

    /// Whether native kernels on maps are measured: where plans in several layouts of maps are compared.
    pub(crate) fn compares_map_layouts(&self) -> bool {
        self.options.measure_maps && self.request.measure
    }

    /// Opens and closes sections as the source's step at `position` needs it.
    fn enter(&mut self, position: usize) {
        let section = self.source.section_of(position);
        if section.is_none_or(|section| section.first == position) {
            self.leave();
        }
        self.tiles = section.map_or(1, |section| section.tiles);
        if let (Some(section), None) = (section, &self.section) {
            let section = Section { first: self.program.steps.len(), ..*section };
            self.section = Some(OpenSection { section, behind: Vec::new() });
        }
    }

    fn leave(&mut self) {
        let Some(OpenSection { section, behind }) = self.section.take() else { return };
        let count = self.program.steps.len() - section.first;
        self.program.sections.push(Section { count, ..section });
        for (step, kernel) in behind {
            self.push(step, kernel);
        }
    }

    /// Adds a prepared step.
    pub(crate) fn push(&mut self, step: Step, kernel: PreparedStep) {
        self.program.steps.push(step);
        self.steps.push(kernel);
    }

    /// Adds a step that is run once, before the section at hand.
    pub(super) fn push_before(&mut self, step: Step, kernel: PreparedStep) {
        let Some(OpenSection { section, .. }) = &mut self.section else { return self.push(step, kernel) };
        self.program.steps.insert(section.first, step);
        self.steps.insert(section.first, kernel);
        section.first += 1;
    }

    /// Adds a step that is run once, behind the section at hand.
    pub(crate) fn push_behind(&mut self, step: Step, kernel: PreparedStep) {
        match &mut self.section {
            Some(section) => section.behind.push((step, kernel)),
            None => self.push(step, kernel),
        }
    }
}
