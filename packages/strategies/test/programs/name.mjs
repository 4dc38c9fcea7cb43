// A module that returns a name instead of a backend.
export default () => "ring";
