//! A loop over registers, whose floating-point operations are known.

/// Registers that are computed with; two more hold the constants.
pub const REGISTERS: usize = 8;

/// Instructions on one register after the other, written in assembler: no compiler changes how many there are.
pub struct Kernel {
    pub name: &'static str,
    pub precision: Precision,
    /// Elements of a register.
    pub lanes: fn() -> usize,
    pub form: Form,
    pub is_supported: fn() -> bool,
    /// Loads `REGISTERS` registers x, then m and c, computes so many times (more than none), and stores the x.
    ///
    /// # Safety
    ///
    /// The machine supports it, and there are as many elements as these registers have.
    pub code: unsafe fn(*mut u8, u64),
}

#[derive(Clone, Copy)]
pub enum Precision {
    Single,
    Double,
}

/// What happens to each x; two operations all of them.
#[derive(Clone, Copy)]
pub enum Form {
    /// x * m + c, in two instructions.
    Two,
    /// x * m + c, fused.
    Fused,
    /// x + m * c, fused.
    #[cfg_attr(target_arch = "x86_64", expect(dead_code, reason = "x86 multiplies x"))]
    Added,
}

impl Precision {
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Double => "double",
        }
    }
}

/// f32 and f64.
trait Element: Copy + From<f32> {}

impl Element for f32 {}
impl Element for f64 {}

/// Each x another small number; m and c such that it neither overflows nor becomes denormal.
fn start<T: Element>(lanes: usize, form: Form) -> Vec<T> {
    let (m, c) = constants(form);
    let x = (0..REGISTERS * lanes).map(|index| 1.0 + f32::from(u16::try_from(index).unwrap_or(0)));
    let constants = [m, c]
        .into_iter()
        .flat_map(|value| std::iter::repeat_n(value, lanes));
    x.chain(constants).map(T::from).collect()
}

fn constants(form: Form) -> (f32, f32) {
    match form {
        Form::Two | Form::Fused => (0.75, 1.5),
        Form::Added => (0.75, 1e-3),
    }
}

impl Kernel {
    /// Floating-point operations of an iteration: a fused multiply-add is two.
    pub fn flops(&self) -> u64 {
        2 * (REGISTERS * (self.lanes)()) as u64
    }

    pub fn run(&self, iterations: u64) {
        match self.precision {
            Precision::Single => drop(self.compute::<f32>(iterations)),
            Precision::Double => drop(self.compute::<f64>(iterations)),
        }
    }

    /// The x afterwards.
    fn compute<T: Element>(&self, iterations: u64) -> Vec<T> {
        assert!((self.is_supported)() && iterations > 0);
        let lanes = (self.lanes)();
        let mut state = start::<T>(lanes, self.form);
        // SAFETY: it is supported, and `start` made what all its registers hold.
        unsafe { (self.code)(state.as_mut_ptr().cast(), iterations) };
        state.truncate(REGISTERS * lanes);
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels;

    const ITERATIONS: u64 = 100;

    /// Both are computed as IEEE 754 has it: the results are the same to the last bit.
    macro_rules! check {
        ($kernel:expr, $element:ty) => {{
            let (m, c) = constants($kernel.form);
            let (m, c) = (<$element>::from(m), <$element>::from(c));
            let mut expected = start::<$element>(($kernel.lanes)(), $kernel.form);
            expected.truncate(REGISTERS * ($kernel.lanes)());
            for x in &mut expected {
                for _ in 0..ITERATIONS {
                    *x = match $kernel.form {
                        Form::Two => *x * m + c,
                        Form::Fused => x.mul_add(m, c),
                        Form::Added => m.mul_add(c, *x),
                    };
                }
            }
            let bits = |all: &[$element]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let found = $kernel.compute::<$element>(ITERATIONS);
            assert_eq!(bits(&found), bits(&expected), "{}", $kernel.name);
        }};
    }

    #[test]
    fn kernels_compute_the_declared_flops() {
        let mut checked = 0;
        for kernel in crate::available() {
            match kernel.precision {
                Precision::Single => check!(kernel, f32),
                Precision::Double => check!(kernel, f64),
            }
            checked += 1;
        }
        assert!(
            checked >= 4,
            "scalars and the smallest vectors are everywhere"
        );
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = kernels::all().iter().map(|kernel| kernel.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), kernels::all().len());
    }
}
