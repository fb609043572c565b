//! Changes that may help against a failure.

/// A change that may help against a failure, in the words of the library. Programs name the
/// option, the field or the command for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remedy {
    /// Choose at compile time, or run the model file.
    ChooseAtCompile,
    /// Run code of another CPU in the emulator.
    Emulate,
    /// Emulate a kernel on its own.
    EmulateKernel,
    /// Replay a call in the emulator, not on this CPU.
    EmulateReplay,
    /// Compile the model for embeddings.
    CompileEmbeddings,
    /// Compile the model for text, or serve its embeddings.
    CompileText,
    /// Compile with early routers, or predict experts in another way.
    PredictExperts,
    /// Do not keep experts in mapped files, or compile for streaming.
    UnmapExperts,
    /// Pass a model file for a plan with the option for model files.
    NameModelFile,
    /// Name the model file that the plan was made from.
    FindModelFile,
    /// Name the model file that matches the plan, or compile again.
    OtherModelFile,
    /// Choose a chat template.
    ChatTemplate,
    /// Make the context larger.
    LargerContext,
    /// Compile for steps of as many tokens as the text has.
    LargerStep,
    /// Score the text in shorter pieces.
    ShorterPieces,
    /// Quantise in spite of the added error.
    Requantise,
    /// Replace a file of another kind.
    ReplaceFile,
    /// Discard the record, and begin again.
    StartOver,
    /// Select one of a model's kernels.
    SelectKernel,
    /// Give the sizes of a kernel.
    KernelSizes,
    /// Compare an edited kernel with its origin, or run it unchecked.
    CompareKernel,
    /// Write the kernels of a model as files.
    WriteKernels,
    /// Write kernels together with their specs.
    WriteSpecs,
    /// Give a command that fails for the kernel.
    FailingCommand,
    /// Name the file for tuned choices of a target that this machine does not have.
    TunedFile,
    /// Name the file for tuned choices.
    TunedPlace,
    /// Raise the limit of locked memory, or do not lock.
    LockLess,
    /// Compile the steps of the model.
    CompileSteps,
    /// Compile for several ranks, or run the model file.
    CompileRanks,
    /// Compile layers of experts.
    CompileLayers,
    /// Compile with experts as they are stored, or packed in the plan file.
    StoreExperts,
    /// List the models that this build reads.
    ListModels,
    /// Record a trace.
    RecordTrace,
    /// Use the model for embeddings.
    UseEmbeddings,
    /// Serve embeddings of the model.
    ServeEmbeddings,
    /// Add a name of the server.
    AllowHost,
    /// Admit an origin of pages.
    AllowOrigin,
    /// Name the folder for saved sequences.
    SlotFolder,
}
