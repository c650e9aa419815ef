// Algorithms of the playground, with their parameters.

export const ALGORITHMS = [
  ["Known model", [
    ["policy-iteration", "Policy iteration", []],
    ["value-iteration", "Value iteration", []],
    ["gauss-seidel", "Gauss-Seidel value iteration", []],
    ["random-order", "Random-order value iteration", ["seed"]],
    ["real-time", "Real-time value iteration", ["seed"]],
    ["prioritized-sweeping", "Prioritized sweeping", ["backups"]],
    ["modified-policy-iteration", "Modified policy iteration", []],
    ["policy-evaluation", "Policy evaluation, random moves", []],
  ]],
  ["Learning to act", [
    ["monte-carlo", "Monte Carlo", ["seed", "stride", "alpha", "epsilon", "initial"]],
    ["sarsa", "SARSA", ["seed", "stride", "alpha", "epsilon", "initial"]],
    ["expected-sarsa", "Expected SARSA", ["seed", "stride", "alpha", "epsilon", "initial"]],
    ["sarsa-lambda", "SARSA(λ)", ["seed", "stride", "alpha", "epsilon", "lambda", "initial"]],
    ["q-learning", "Q-learning", ["seed", "stride", "alpha", "epsilon", "initial"]],
    ["double-q-learning", "Double Q-learning", ["seed", "stride", "alpha", "epsilon", "initial"]],
    ["dyna-q", "Dyna-Q", ["seed", "stride", "alpha", "epsilon", "planning", "initial"]],
  ]],
  ["Learning to predict", [
    ["monte-carlo-prediction", "Monte Carlo prediction, random moves", ["seed", "stride", "initial"]],
    ["td-lambda", "TD(λ), random moves", ["seed", "stride", "alpha", "lambda", "initial"]],
  ]],
];

export const NAMES = new Map(ALGORITHMS.flatMap(([, list]) => list.map(([name, title]) => [name, title])));
export const KNOBS = new Map(ALGORITHMS.flatMap(([, list]) => list.map(([name, , knobs]) => [name, new Set(knobs)])));

/** Parameters: field of the request, letter in the address, default, range. */
export const PARAMETERS = {
  gamma: { letter: "gamma", label: "Discount γ", field: "gamma", usual: 0.9, low: 0, high: 1, step: 0.01 },
  alpha: { letter: "alpha", label: "Step size α", field: "step_size", usual: 0.1, low: 0.01, high: 1, step: 0.01 },
  epsilon: { letter: "epsilon", label: "Exploration ε", field: "epsilon", usual: 0.1, low: 0, high: 1, step: 0.01 },
  lambda: { letter: "lambda", label: "Traces λ", field: "td_lambda", usual: 0.9, low: 0, high: 1, step: 0.01 },
  planning: { letter: "planning", label: "Planning steps", field: "planning_steps", usual: 5, low: 0, high: 50, step: 1 },
  initial: { letter: "initial", label: "Initial values", field: "initial_value", usual: 0, low: -10, high: 10, step: 0.5 },
};
export const STRIDES = [1, 10, 100, 1000];
