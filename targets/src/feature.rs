//! CPU features that generated code may need, with one row for each.
//!
//! To add a feature, add a row here, its detection in [`crate::cpu`], and the decoder's name in
//! `crate::instruction`. The code does not compile until all three exist.

macro_rules! features {
    ($($variant:ident $name:literal $doc:literal;)*) => {
        /// A CPU feature that generated code may need.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Feature { $(#[doc = $doc] $variant),* }

        impl Feature {
            /// Array of all features, in the order in which CPUs got them.
            pub const ALL: &[Feature] = &[$(Feature::$variant),*];

            /// Returns the name of the feature in `/proc/cpuinfo`.
            pub const fn name(self) -> &'static str {
                match self { $(Feature::$variant => $name),* }
            }

            /// Returns a description of what the feature provides.
            pub const fn gives(self) -> &'static str {
                match self { $(Feature::$variant => $doc),* }
            }
        }
    };
}

features! {
    Avx "avx" "256-bit float vectors";
    F16c "f16c" "half precision in hardware";
    Fma "fma" "fused multiply-add";
    Avx2 "avx2" "256-bit integer vectors";
    AvxVnni "avx_vnni" "256-bit int8 dot products in one instruction instead of two";
    Avx512f "avx512f" "512-bit vectors, twice as many registers";
    Avx512bw "avx512bw" "512-bit vectors of bytes and words";
    Avx512dq "avx512dq" "512-bit vectors: more of doublewords and quadwords";
    Avx512vl "avx512vl" "masks and all registers for shorter vectors too";
    Avx512vnni "avx512_vnni" "512-bit int8 dot products";
    Avx512vbmi "avx512vbmi" "byte permutations over 64 bytes";
    Avx512bf16 "avx512_bf16" "bfloat16 conversions and dot products";
    Avx512fp16 "avx512_fp16" "half precision arithmetic";
    AmxTile "amx_tile" "tile registers";
    AmxInt8 "amx_int8" "int8 tile products";
    AmxBf16 "amx_bf16" "bfloat16 tile products";
    AmxFp16 "amx_fp16" "half precision tile products";
}

impl Feature {
    /// Returns the vendor's name of the extension to which the feature belongs, and the extension's
    /// base feature.
    pub fn extension(self) -> Option<(&'static str, Feature)> {
        [("avx512", "AVX-512", Feature::Avx512f), ("amx_", "AMX", Feature::AmxTile)]
            .into_iter()
            .find_map(|(prefix, name, first)| self.name().starts_with(prefix).then_some((name, first)))
    }
}

/// Set of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(u32);

impl Features {
    /// Returns the set of these features.
    pub const fn from_list(list: &[Feature]) -> Features {
        Features(0).with(list)
    }

    /// Returns this set with additional features.
    pub const fn with(self, list: &[Feature]) -> Features {
        let mut bits = self.0;
        let mut i = 0;
        while i < list.len() {
            bits |= 1 << list[i] as u32;
            i += 1;
        }
        Features(bits)
    }

    /// Returns whether a feature is in the set.
    pub const fn has(self, feature: Feature) -> bool {
        self.0 >> feature as u32 & 1 == 1
    }

    /// Returns whether this set contains all features of another set.
    pub const fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the number of features in the set.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the features of the set, in the order of [`Feature::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.iter().copied().filter(move |f| self.has(*f))
    }
}
