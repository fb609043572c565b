//! CPU features that instructions need, converted between the decoder's names and [`Feature`]s.

use iced_x86::CpuidFeature;

use crate::Feature;

/// Returns the decoder's name for a feature.
const fn decoder_name(feature: Feature) -> CpuidFeature {
    match feature {
        Feature::Avx => CpuidFeature::AVX,
        Feature::F16c => CpuidFeature::F16C,
        Feature::Fma => CpuidFeature::FMA,
        Feature::Avx2 => CpuidFeature::AVX2,
        Feature::AvxVnni => CpuidFeature::AVX_VNNI,
        Feature::Avx512f => CpuidFeature::AVX512F,
        Feature::Avx512bw => CpuidFeature::AVX512BW,
        Feature::Avx512dq => CpuidFeature::AVX512DQ,
        Feature::Avx512vl => CpuidFeature::AVX512VL,
        Feature::Avx512vnni => CpuidFeature::AVX512_VNNI,
        Feature::Avx512vbmi => CpuidFeature::AVX512_VBMI,
        Feature::Avx512bf16 => CpuidFeature::AVX512_BF16,
        Feature::Avx512fp16 => CpuidFeature::AVX512_FP16,
        Feature::AmxTile => CpuidFeature::AMX_TILE,
        Feature::AmxInt8 => CpuidFeature::AMX_INT8,
        Feature::AmxBf16 => CpuidFeature::AMX_BF16,
        Feature::AmxFp16 => CpuidFeature::AMX_FP16,
    }
}

/// Returns the feature that has a decoder's name, or `None` if no target lists it.
pub fn feature(cpuid: CpuidFeature) -> Option<Feature> {
    Feature::ALL.iter().copied().find(|known| decoder_name(*known) == cpuid)
}
